"""The report: the page shows all results of a run as text, and the same files give the same bytes."""

import base64
import hashlib
import os
import re
import shutil
from collections import defaultdict
from contextlib import chdir
from html.parser import HTMLParser

import pandas as pd
import pytest
import yaml

from bertrio.analysis.report import SECTIONS
from bertrio.cli.main import main
from bertrio.core.errors import UserError
from bertrio.core.files import write_json, write_text
from bertrio.evaluation.predictions import write_predictions
from bertrio.experiments.report import write_report
from tests.experiments.planted import Planted
from tests.metric_files import EVIL, SHOWN, write_metric_files
from tests.toy_project import Clone


class Page(HTMLParser):
    """Parser of a page's elements and the text of each section, as in a browser without scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements, self.sections, self.scripts, self._section = [], defaultdict(str), [], None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "section":
            self._section = dict(attributes)["id"]

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts.append(data)
        elif self._section:
            self.sections[self._section] += data


def predictions(flip: int) -> pd.DataFrame:
    """Return rows of sst with every `flip`-th one wrong."""
    rows = range(40)
    outputs = {"probabilities": [[0.2] * 5] * 40, "score": float("nan")}
    table = pd.DataFrame({"id": [f"s{row}" for row in rows], "task": "sst", "split": "dev", **outputs})
    labels = [float(row % 5) for row in rows]
    return table.assign(label=labels, prediction=[float((row + (row % flip == 0)) % 5) for row in rows])


def worst_row(text: str) -> dict:
    neighbours = [{"id": "t1", "texts": ["seen before"], "label": 3.0, "similarity": 0.87}]
    change = {"from": "preference", "to": "taste", "before": 0.0, "after": 4.0}
    change |= {"confidence_before": 0.98, "confidence_after": 0.61}
    row = {"id": "s1", "texts": [text], "label": 4.0, "prediction": 0.0, "confidence": 0.9987}
    return row | {"neighbours": neighbours, "change": change}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory, root):
    """A committed project with hand-written files of a run."""
    folder = tmp_path_factory.mktemp("report")
    planted = Planted(folder, root)
    settings = yaml.safe_load((root / "params.yaml").read_text())
    settings["tasks"] = {"sst": settings["tasks"]["sst"] | {"classes": 5}}
    write_text(folder / "dvc.lock", "schema: '2.0'\nstages: {}\n")
    write_text(folder / "params.yaml", yaml.safe_dump(settings, sort_keys=False))
    write_metric_files(folder / "metrics")
    training = {"seconds": 60.0, "device": "cpu", "precision": "bf16", "threads": 2, "parameters": 109_482_240}
    split = {"seconds": 6.7, "peak_memory_mb": 309.9, "device": EVIL}
    write_json(folder / "metrics/timing.json", {"finetune-base": training, "split": split})
    analysis = folder / "predictions/analysis"
    write_json(analysis / "errors.json", {"sst": [worst_row(EVIL), worst_row("fine") | {"change": None}]})
    suspect = {"task": "sst", "id": "s3", "label": 1, "suggested": 4, "doubt": 0.91, "text": EVIL, "text_b": None}
    pd.DataFrame([suspect]).to_csv(analysis / "suspects.csv", index=False)
    write_text(folder / "plots/history/base.csv", "epoch,step,dev_sst_accuracy\n1,1250,0.59\n")
    write_text(folder / "plots/learning/score/sst.csv", "step,score\n1250,0.59\n")  # of one epoch
    write_text(folder / "plots/conflicts/base.csv", f'step,task_a,task_b,cosine\n1,sst,"{EVIL[:22]}",-0.5\n')
    write_text(folder / "plots/reliability/sst.csv", "bin,n,confidence,accuracy,low,high\n0,67,0.5,0.6,0.4,0.7\n")
    write_text(folder / "plots/confusion/sst.csv", "gold,predicted\nfine,fine\nfine,awful\nfine,fine\n")
    texts = pd.DataFrame({"id": [f"s{row}" for row in range(40)], "text": [f"{EVIL} {row}" for row in range(40)]})
    (folder / "data/splits/sst").mkdir(parents=True)
    texts.assign(label=predictions(5)["label"]).to_parquet(folder / "data/splits/sst/dev.parquet")
    write_predictions(predictions(5), folder / "predictions/ensemble.parquet")
    planted.commit()
    return folder


@pytest.fixture
def project(finished_run, tmp_path):
    """A copy of the finished run to change."""
    return shutil.copytree(finished_run, tmp_path / "project", symlinks=True)


def change_settings(project, change):
    settings = yaml.safe_load((project / "params.yaml").read_text())
    change(settings)
    write_text(project / "params.yaml", yaml.safe_dump(settings, sort_keys=False))


def page_of(project, out, **options) -> tuple[str, Page]:
    with chdir(project):
        write_report(out=out / "report.html", **options)
    html = (out / "report.html").read_text(encoding="utf-8")
    return html, Page(html)


def test_sections_show_their_files_with_reproducible_bytes(finished_run, tmp_path):
    html, page = page_of(finished_run, tmp_path)
    assert page_of(finished_run, tmp_path)[0] == html
    assert list(page.sections) == [name for name, *_ in SECTIONS if name != "comparison"]
    expected = {
        "errors": ["preference → taste: 0 (0.98) → 4 (0.61)", "seen before (label 3, similarity 0.87)", "0.999"],
        "suspects": ["doubt", "0.910"],
        "predictions": ["Confusion matrix: sst", "gold fine, predicted awful: 1 of 3 rows, 33.3 %"],
        "settings": ["finetune.lr", "6e-05", "All are those of the last commit's run"],
        "data": ["Source: sample (seed: 0)", "labels 0", "empty text", "bag_of_words", "0.526"],
        "training": ["epoch 3 was kept", "1,250", "Score on dev", "sst, step 1,250: 0.59", "Gradient conflicts: base"],
        "timings": ["309.9", "67 seconds in all"],
    }
    for name, texts in (SHOWN | expected).items():
        for text in texts:
            assert text in page.sections[name], (name, text)
        assert "is not there" not in page.sections[name]


def test_head_shows_date_data_encoder_device_and_time(project, tmp_path):
    (project / "dvc.lock").touch()  # a clone gives old files a new date
    html, _ = page_of(project, tmp_path)
    facts = dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]*)</dd>", html))
    assert facts == {
        "Date": Clone(project).git("log", "-1", "--format=%cs").strip(),
        "Data": "sample; rows to train on: sst 20,000, qqp 20,000, sts 20,000",
        "Encoder": "tiny, 2 layers of width 64, 109 million parameters",
        "Device": "cpu, bf16, 2 threads",
        "Time": "1.1 minutes in all",
    }
    write_text(project / "dvc.lock", "schema: '2.0'\nstages: {check: {cmd: x}}\n")
    os.utime(project / "dvc.lock", (0, 1e9))
    assert "<dd>2001-09-09</dd>" in page_of(project, tmp_path)[0]


def test_classes_are_shown_by_name(project, tmp_path):
    names = ["very negative", "negative", "neutral", "positive", "very positive"]
    change_settings(project, lambda settings: settings["tasks"]["sst"].update(labels=names))
    write_text(project / "plots/confusion/sst.csv", "gold,predicted\n4 very positive,1 negative\n2 neutral,1 negative")
    html, page = page_of(project, tmp_path)
    assert "preference → taste: very negative (0.98) → very positive (0.61)" in page.sections["errors"]
    assert "seen before (label positive" in page.sections["errors"]
    assert re.search(r"s3\s*negative\s*very positive", page.sections["suspects"])
    assert re.findall("gold ([a-z ]+), predicted negative", html) == ["negative", "neutral", "very positive"]


def test_figures_of_one_member_are_captioned(finished_run, project, tmp_path):
    caption = "One member was asked for each task, not the ensemble: base for "
    sections = ["robustness", "challenges", "errors"]
    _, page = page_of(finished_run, tmp_path)
    assert not [name for name in sections if caption in page.sections[name]], "the ensemble is its only member"
    change_settings(project, lambda settings: settings["ensemble"].update(members={"base": {}, "second": {}}))
    _, page = page_of(project, tmp_path)
    assert [name for name in sections if caption in page.sections[name]] == sections


def test_markup_in_texts_is_escaped_and_policy_allows_only_own_script(finished_run, tmp_path):
    html, page = page_of(finished_run, tmp_path)
    for name in ("metrics", "errors", "suspects", "slices", "challenges", "timings"):
        assert EVIL in page.sections[name], name
    assert "<script>alert" not in html
    tags, attributes = zip(*page.elements)
    assert (tags.count("script"), tags.count("img")) == (1, 0)
    # no external resources, and no inline scripts or styles, which the policy forbids
    assert not [name for one in attributes for name in one if name.startswith("on") or name == "style"]
    links = [one[key] for one in attributes for key in ("src", "href") if key in one]
    assert all(link.startswith(("data:", "#")) for link in links)
    policy = next(one["content"] for one in attributes if one.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL).group(1)
    script, sheet = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in (page.scripts[0], style))
    assert "default-src 'none'" in policy and f"script-src 'sha256-{script.decode()}'" in policy
    assert sheet.decode() in policy and "url(" not in style


def luminance(color: str) -> float:
    """Relative luminance of #rrggbb, as defined by WCAG 2."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrast(root, scheme):
    light, dark = (root / "src/bertrio/analysis/report.css").read_text().split("prefers-color-scheme: dark")
    colors = dict(re.findall(r"--(\w+): (#\w{6})", {"light": light, "dark": dark}[scheme]))
    for background in ("ground", "raised"):
        for color in ("ink", "soft", "accent", "good", "bad"):
            darker, lighter = sorted(luminance(colors[name]) for name in (background, color))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (background, color)


def test_section_without_its_file_names_the_stage(project, tmp_path):
    needed = {path: (name, stage) for name, _, path, stage in SECTIONS if path}
    for path in needed:
        target = project / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    _, page = page_of(project, tmp_path)
    for path, (name, stage) in needed.items():
        assert f"{path} is not there" in page.sections[name]
        assert f"dvc repro {stage}" in page.sections[name]


DAMAGED = {"params.yaml": "tasks: {}", "metrics/evaluation.json": "[]", "plots/history/base.csv": '"'}
DAMAGED |= {"predictions/analysis/suspects.csv": "a,b\n1,2\n"}


@pytest.mark.parametrize(("path", "content"), DAMAGED.items())
def test_malformed_file_or_unknown_task_is_an_error(project, tmp_path, path, content):
    write_text(project / path, content)
    path = path.replace("params.yaml", "predictions/analysis/errors.json")  # the first file with the task
    with pytest.raises(UserError, match=f"^workspace: {path}: (found another shape|can't be read as a table)"):
        page_of(project, tmp_path)


def test_comparison_with_a_baseline(project, tmp_path):
    write_predictions(predictions(20), project / "predictions/ensemble.parquet")
    change_settings(project, lambda settings: settings["finetune"].update(lr=2e-5))
    comparison = page_of(project, tmp_path, baseline="HEAD")[1].sections["comparison"]
    assert "sst: workspace is better than HEAD by 0.1500" in comparison  # 6 rows all one way: p is 2 / 2^6
    assert "Differences, B minus A" in comparison and "no difference" in comparison
    assert "sst: fixed (6)" in comparison and "sst: broken (0)" in comparison
    assert f"{EVIL} 5" in comparison
    assert "finetune.lr" in comparison
    html, page = page_of(project, tmp_path, name="HEAD")
    assert EVIL in page.sections["errors"] and "Confusion matrix: sst" in page.sections["predictions"]
    assert "<title>HEAD · bertrio</title>" in html


def test_failed_comparison_keeps_the_rest_of_the_page(project, tmp_path):
    write_predictions(predictions(20).iloc[1:], project / "predictions/ensemble.parquet")
    _, page = page_of(project, tmp_path, baseline="HEAD")
    assert "No comparison with HEAD" in page.sections["comparison"]
    assert "1 rows are in HEAD" in page.sections["comparison"]
    assert EVIL in page.sections["errors"]


def test_command_shows_changed_settings_first(project, monkeypatch, capsys):
    change_settings(project, lambda settings: settings["finetune"].update(epochs=7, lr=6e-05))
    monkeypatch.chdir(project)
    assert main(["report", "--out", "page.html"]) == 0
    assert "page.html" in capsys.readouterr().out
    html = (project / "page.html").read_text(encoding="utf-8")
    changed = Page(html).sections["settings"].partition("All settings")[0]
    assert "finetune.epochs" in changed and "finetune.lr" not in changed
    assert "Changed settings: finetune.epochs = 7." in html
