"""The report: everything that a run found is on the page, as text, and the same files give the same bytes."""

import base64
import hashlib
import re
import subprocess
from html.parser import HTMLParser

import pandas as pd
import pytest
import yaml

from bertrio.analysis.report import SECTIONS
from bertrio.cli.main import main
from bertrio.core.files import write_json, write_text
from bertrio.evaluation.predictions import write_predictions
from bertrio.experiments.report import write_report

EVIL = "<script>alert(1)</script> <!-- </script> \" ' & <img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """What a browser without scripts makes of a page: its elements, and the text of each section."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements, self.sections, self.scripts = [], {}, []
        self._section, self._raw = None, None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "section":
            self._section = dict(attributes)["id"]
            self.sections[self._section] = ""
        self._raw = tag if tag in ("script", "style") else self._raw

    def handle_endtag(self, tag):
        self._section = None if tag == "section" else self._section
        self._raw = None if tag == self._raw else self._raw

    def handle_data(self, data):
        if self._raw == "script":
            self.scripts.append(data)
        elif self._section:
            self.sections[self._section] += data


def predictions(flip: int) -> pd.DataFrame:
    """Rows of sst, of which every `flip`-th is wrong."""
    return pd.DataFrame(
        {
            "id": [f"s{row}" for row in range(40)],
            "task": "sst",
            "split": "dev",
            "label": [float(row % 5) for row in range(40)],
            "prediction": [float((row + (row % flip == 0)) % 5) for row in range(40)],
            "probabilities": [[0.2] * 5] * 40,
            "score": float("nan"),
        }
    )


@pytest.fixture
def project(tmp_path, root):
    """A project with the files that a run leaves, made by hand."""
    settings = yaml.safe_load((root / "params.yaml").read_text())
    settings["tasks"] = {"sst": settings["tasks"]["sst"]}
    write_text(tmp_path / "params.yaml", yaml.safe_dump(settings, sort_keys=False))
    metrics = tmp_path / "metrics"
    values = {"sst": {"accuracy": 0.862, "mae": 0.17}, "overall_mean": 0.862}
    intervals = {"dev": {"sst": {"accuracy": [0.841, 0.882]}, "overall_mean": [0.84, 0.88]}}
    chosen = {"rows": "dev", "by": "overall_normalized"}
    write_json(
        metrics / "evaluation.json",
        {
            "dev": values,
            "best_epoch": {"base": 3},
            "selected_on": chosen,
            "intervals": intervals,
            "overall_tasks": [EVIL],
        },
    )
    facts = {"rows": 40, "labels": {"0": 30, "1": 10}, "tokens": {"p50": 7, "max": 19}}
    write_json(
        metrics / "data.json",
        {
            "source": "sample",
            "origin": {"seed": 0},
            "rejects": {"sst": {"total": 2, "empty text": 2}},
            "tasks": {"sst": {"train": facts, "dev": facts | {"rows_sharing_a_sentence_with_train": 5}}},
            "simple_baselines": {"sst": {"bag_of_words": {"accuracy": 0.526}}},
        },
    )
    measures = ("ece", "brier", "nll", "temperature", "ece_scaled", "brier_scaled", "nll_scaled")
    write_json(metrics / "calibration.json", {"sst": {"rows": 20} | dict.fromkeys(measures, 0.125)})
    part = {"n": 13, "accuracy": 0.7, "low": 0.6, "high": 0.8}
    write_json(metrics / "slices.json", {"sst": {"negation": {"with": part, EVIL: part}}})
    nothing = {"n": 0, "flips": None, "shift": None, "low": None, "high": None}
    flips = {"n": 40, "flips": 0.15, "shift": 0.04, "low": 0.07, "high": 0.29}
    write_json(metrics / "robustness.json", {"sst": {"model": "base", "typos": flips, "swapped_order": nothing}})
    paws = {"task": "sst", "model": "base", "n": 677, "accuracy": 0.41, "intervals": {"accuracy": [0.37, 0.45]}}
    write_json(metrics / "challenges.json", {"paws": paws | {"dev": {"accuracy": 0.876}}})
    write_json(metrics / "timing.json", {"split": {"seconds": 6.7, "peak_memory_mb": 309.9, "device": EVIL}})
    analysis = tmp_path / "predictions" / "analysis"
    write_json(analysis / "errors.json", {"sst": [worst_row(EVIL), worst_row("fine") | {"change": None}]})
    write_text(
        analysis / "suspects.csv", f'task,id,label,suggested,doubt,text,text_b\nsst,s3,1,4,0.91,"{quoted(EVIL)}",\n'
    )
    write_text(tmp_path / "plots/history/base.csv", "epoch,step,dev_sst_accuracy\n1,1250,0.59\n")
    (tmp_path / "plots/pictures").mkdir(parents=True)
    (tmp_path / "plots/pictures/conflicts.png").write_bytes(b"PNG")
    write_text(tmp_path / "plots/confusion/sst.csv", "gold,predicted\nfine,fine\nfine,awful\nfine,fine\n")
    return tmp_path


def worst_row(text: str) -> dict:
    near = [{"id": "t1", "texts": ["seen before"], "label": 3.0, "similarity": 0.87}]
    change = {
        "text": 0,
        "position": 2,
        "from": "preference",
        "to": "taste",
        "changed": "...",
        "before": 0.0,
        "after": 4.0,
    }
    change |= {"confidence_before": 0.98, "confidence_after": 0.61}
    row = {"id": "s1", "texts": [text], "label": 4.0, "prediction": 0.0, "confidence": 0.9987}
    return row | {"neighbours": near, "change": change}


def quoted(text: str) -> str:
    return text.replace('"', '""')


def page_of(project, **options) -> tuple[str, Page]:
    write_report(out=project / "report.html", root=project, **options)
    html = (project / "report.html").read_text(encoding="utf-8")
    return html, Page(html)


def test_every_section_says_what_its_file_holds_and_the_same_files_give_the_same_bytes(project):
    html, page = page_of(project)
    assert page_of(project)[0] == html
    assert list(page.sections) == [name for name, *_ in SECTIONS]
    expected = {
        "metrics": ["0.862 [0.841, 0.882]", "mae (lower is better)", "3 of base", "no labels for test"],
        "calibration": ["temperature", "0.125"],
        "slices": ["negation", "0.700 [0.600, 0.800]", "13"],
        "robustness": ["typos", "0.150 [0.070, 0.290]", "swapped order"],
        "challenges": ["paws", "677", "0.410 [0.370, 0.450]", "0.876"],
        "errors": ["preference → taste: 0 (0.98) → 4 (0.61)", "seen before (label 3, similarity 0.87)", "0.999"],
        "suspects": ["doubt", "0.910"],
        "pictures": ["conflicts", "Confusion, sst", "predicted awful"],
        "settings": ["finetune.lr", "6e-05"],
        "data": ["Source: sample (seed: 0)", "labels 0", "empty text", "bag_of_words", "0.526"],
        "training": ["epoch 3 was kept", "1,250"],
        "timings": ["309.9", "7 seconds in all"],
    }
    for name, texts in expected.items():
        for text in texts:
            assert text in page.sections[name], (name, text)
        assert "is not there" not in page.sections[name]


def test_figures_of_one_member_are_not_passed_off_as_the_ensembles(project):
    said = "One member was asked for each task, not the ensemble: base for sst."
    sections = ("robustness", "challenges", "errors")
    _, page = page_of(project)
    assert not [name for name in sections if said in page.sections[name]], "an ensemble of one is that member"
    settings = yaml.safe_load((project / "params.yaml").read_text())
    settings["ensemble"]["members"] = {"base": {}, "second": {}}
    write_text(project / "params.yaml", yaml.safe_dump(settings, sort_keys=False))
    _, page = page_of(project)
    assert [name for name in sections if said in page.sections[name]] == list(sections)


def test_a_text_with_markup_is_text_wherever_it_stands(project):
    html, page = page_of(project)
    for name in ("metrics", "errors", "suspects", "slices", "timings"):
        assert EVIL in page.sections[name], name
    assert "<script>alert" not in html
    assert [tag for tag, _ in page.elements].count("script") == 1
    pictures = [attributes for tag, attributes in page.elements if tag == "img"]
    assert len(pictures) == 1
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_a_section_without_its_file_says_which_stage_writes_it(project):
    needed = {path: (name, stage) for name, _, path, stage in SECTIONS if path}
    for path in needed:
        target = project / path
        if target.is_dir():
            for file in target.iterdir():
                file.unlink()
            target.rmdir()
        else:
            target.unlink()
    _, page = page_of(project)
    for path, (name, stage) in needed.items():
        assert f"{path} is not there" in page.sections[name]
        assert f"dvc repro {stage}" in page.sections[name]


def test_nothing_comes_from_elsewhere_and_only_the_pages_own_script_may_run(project):
    html, page = page_of(project)
    policy = next(of["content"] for _, of in page.elements if of.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL).group(1)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy
    links = [of[key] for _, of in page.elements for key in ("src", "href") if key in of]
    assert all(link.startswith(("data:", "#")) for link in links)
    assert "url(" not in style
    assert not [of for _, of in page.elements if "style" in of]  # the policy would refuse them


def git(project, *arguments):
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    subprocess.run(command, cwd=project, check=True, capture_output=True)


@pytest.fixture
def repository(project):
    """The project as a git repository with DVC, all files committed."""
    write_text(project / "dvc.yaml", "stages: {}\n")
    write_text(project / ".dvc/config", "[core]\n    analytics = false\n")
    write_text(project / ".dvc/.gitignore", "/tmp\n/cache\n")
    texts = {"id": [f"s{row}" for row in range(40)], "text": [f"{EVIL} {row}" for row in range(40)]}
    (project / "data/splits/sst").mkdir(parents=True)
    pd.DataFrame(texts).assign(label=predictions(5)["label"]).to_parquet(project / "data/splits/sst/dev.parquet")
    write_predictions(predictions(5), project / "predictions/ensemble.parquet")
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "baseline")
    return project


def test_a_baseline_is_compared_with_and_its_rows_are_told(repository):
    write_predictions(predictions(20), repository / "predictions/ensemble.parquet")
    settings = (repository / "params.yaml").read_text().replace("lr: 6.0e-05", "lr: 2e-05")
    write_text(repository / "params.yaml", settings)
    _, page = page_of(repository, baseline="HEAD")
    told = page.sections["comparison"]
    assert "sst: workspace is better than HEAD by 0.1500" in told  # of 6 throws all one way, p is 2 / 2^6
    assert "fewer than three runs on a side" in told
    assert "+0.150" in told  # 8 of 40 were wrong, now 2
    assert "sst: fixed (6)" in told
    assert "sst: broken (0)" in told
    assert f"{EVIL} 5" in told
    assert "finetune.lr" in told
    html, page = page_of(repository, name="HEAD")
    assert EVIL in page.sections["errors"] and "conflicts" in page.sections["pictures"]
    assert "<title>HEAD · bertrio</title>" in html


def test_a_comparison_that_fails_leaves_the_rest_of_the_page(repository):
    write_predictions(predictions(20).iloc[1:], repository / "predictions/ensemble.parquet")
    _, page = page_of(repository, baseline="HEAD")
    assert "No comparison with HEAD" in page.sections["comparison"]
    assert "1 rows are in HEAD" in page.sections["comparison"]
    assert EVIL in page.sections["errors"]


def test_settings_that_differ_from_the_last_commit_come_first(repository):
    _, page = page_of(repository)
    assert "All are those of params.yaml" in page.sections["settings"]
    settings = yaml.safe_load((repository / "params.yaml").read_text())
    settings["finetune"]["epochs"], settings["finetune"]["lr"] = 7, "6e-05"  # text to YAML, the same number
    write_text(repository / "params.yaml", yaml.safe_dump(settings))
    html, page = page_of(repository)
    changed = page.sections["settings"].partition("All settings")[0]
    assert "finetune.epochs" in changed
    assert "finetune.lr" not in changed
    assert "Changed settings: finetune.epochs = 7." in html


def test_the_command(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(["report", "--out", "page.html"]) == 0
    assert "page.html" in capsys.readouterr().out
    assert (project / "page.html").read_text().startswith("<!DOCTYPE html>")
