"""The model card: valid front matter, no claim without a source, and texts from data that stay texts."""

import re

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from bertrio.analysis.card import write_card
from bertrio.config import build_tasks, merged
from bertrio.config.loading import read_yaml, validate_params
from bertrio.core.errors import UserError
from bertrio.core.files import write_json

EVIL = (
    "<script>alert(1)</script> | [a](http://example.org) `b` *c* _d_ ~~e~~ &amp; www.example.org\n# f ![g](h) a@b.org"
)
PART = {"n": 40, "accuracy": 0.61, "low": 0.45, "high": 0.75}


def params_with(root, **overrides):
    return validate_params(merged(read_yaml(root / "params.yaml"), overrides), "params.yaml")


def data_of(source: str, origin: dict) -> dict:
    splits = {"train": {"rows": 20000}, "dev": {"rows": 1000, "rows_sharing_a_sentence_with_train": 7}}
    return {"source": source, "origin": origin, "tasks": dict.fromkeys(("sst", "qqp", "sts"), splits)}


@pytest.fixture
def metrics(tmp_path):
    """What the stages leave for the card, made by hand."""
    folder = tmp_path / "metrics"
    write_json(folder / "data.json", data_of("sample", {"seed": 0}))
    dev = {"sst": {"accuracy": 0.862, "mae": 0.17}, "qqp": {"accuracy": 0.888}, "sts": {"pearson": 0.925}}
    intervals = {"dev": {"sst": {"accuracy": [0.841, 0.882]}, "overall_mean": [0.8, 0.9]}}
    chosen = {"rows": "dev", "by": "overall_normalized"}
    found = {"dev": {**dev, "overall_mean": 0.891}, "intervals": intervals, "selected_on": chosen}
    write_json(folder / "evaluation.json", {**found, "best_epoch": {"base": 3}})
    parts = {"with": PART, EVIL: PART, "few": PART | {"n": 3}}
    whole = {"all rows": PART | {"accuracy": 0.1}}
    write_json(folder / "slices.json", {"sst": {"all": whole, "negation": parts}})
    write_json(folder / "calibration.json", {"sst": {"rows": 500, "ece": 0.034, "temperature": 1.31}})
    nothing = {"n": 0, "flips": None, "shift": None, "low": None, "high": None}
    flips = {"n": 40, "flips": 0.15, "shift": 0.04, "low": 0.07, "high": 0.29}
    write_json(folder / "robustness.json", {"sst": {"model": "base", "typos": flips, "swapped_order": nothing}})
    paws = {"task": "qqp", "model": "base", "n": 677, "accuracy": 0.41, "intervals": {"accuracy": [0.37, 0.45]}}
    write_json(folder / "challenges.json", {EVIL: paws | {"dev": {"accuracy": 0.876}}})
    return folder


def card_of(params, metrics):
    path = metrics.parent / "models" / "README.md"
    write_card(params, build_tasks(params), metrics=metrics, path=path)
    return path.read_text(encoding="utf-8")


def test_the_hub_reads_the_front_matter(default_params, metrics):
    data = ModelCard(card_of(default_params, metrics)).data
    found = {(one.task_name, one.dataset_split, one.metric_type): one.metric_value for one in data.eval_results}
    assert found["sst", "dev", "accuracy"] == 0.862
    assert found["sts", "dev", "pearson"] == 0.925
    assert data.metrics == ["accuracy", "pearson"]
    assert data.language == "en"


def test_a_hub_encoder_and_data_sets_are_named(root, metrics):
    ids = {"sst": "SetFit/sst5", "qqp": "nyu-mll/glue", "sts": "mteb/stsbenchmark-sts"}
    write_json(metrics / "data.json", data_of("hub", {name: {"id": own, "commit": "abc"} for name, own in ids.items()}))
    params = params_with(root, data={"source": "hub"}, encoder={"name": "google/bert"})
    text = card_of(params, metrics)
    front = yaml.safe_load(text.split("---")[1])
    assert front["base_model"] == "google/bert"
    assert front["datasets"] == list(ids.values())
    assert "language" not in front
    assert "nyu-mll/glue, commit abc | unknown" in text


def test_a_local_encoder_keeps_its_place_on_disk_to_itself(root, metrics, tmp_path):
    (tmp_path / "someone" / "encoder").mkdir(parents=True)
    text = card_of(params_with(root, encoder={"name": str(tmp_path / "someone" / "encoder")}), metrics)
    assert "encoder, from a local folder" in text
    assert "someone" not in text
    assert "base_model" not in text


def test_licences_that_are_unknown_are_said_to_be_and_none_is_made_up(root, metrics):
    write_json(metrics / "data.json", data_of("cs224n", {}) | {"extra_train": {"sst": "reviews.tsv"}})
    text = card_of(params_with(root, data={"source": "cs224n", "path": "/somewhere/course"}), metrics)
    assert text.count("| unknown |") >= 3
    assert "must be looked up" in text
    assert "/somewhere" not in text
    (row,) = [line for line in text.splitlines() if "reviews.tsv" in line]
    assert "a file of the user's own | unknown" in row


def test_the_card_is_filled_in(default_params, metrics):
    text = card_of(default_params, metrics)
    for expected in (
        "0.862 [0.841, 0.882]",
        "mae (lower is better)",
        "0.610 [0.450, 0.750]",
        "0.150 [0.070, 0.290]",
        "0.410 [0.370, 0.450] | 0.876 |",
        "1.310",
        "7 of 1,000 rows of sst dev",
        "chosen on dev",
        "Not measured on test",
        "Predictor.load",
        "base: 3",
    ):
        assert expected in text, expected
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles[:4] == ["Use", "Data and licences", "Training", "Metrics"]
    assert {"Slices", "Calibration", "Robustness", "Challenge files", "Limits", "How to load"} <= set(titles)


def test_limits_name_the_weakest_slices_that_have_rows_enough(default_params, metrics):
    limits = card_of(default_params, metrics).split("## Limits")[1].split("\n## ")[0]
    assert "negation: with" in limits
    assert "negation: few" not in limits
    assert "all rows" not in limits


def test_figures_of_one_member_are_not_passed_off_as_the_ensembles(root, default_params, metrics):
    said = "One member was asked for each task, not the ensemble: base for "
    assert said not in card_of(default_params, metrics)
    text = card_of(params_with(root, ensemble={"members": {"base": {}, "second": {}}}), metrics)
    assert f"{said}sst." in text.split("## Robustness")[1].split("\n## ")[0]
    assert f"{said}qqp." in text.split("## Challenge files")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", ["slices", "calibration", "robustness", "challenges"])
def test_what_was_not_measured_has_no_section(default_params, metrics, name):
    (metrics / f"{name}.json").unlink()
    title = {"challenges": "Challenge files"}.get(name, name.capitalize())
    assert f"\n## {title}\n" not in card_of(default_params, metrics)


@pytest.mark.parametrize("name", ["data", "evaluation"])
def test_a_missing_file_is_a_message(default_params, metrics, name):
    (metrics / f"{name}.json").unlink()
    with pytest.raises(UserError, match=f"{name}.json.*dvc repro"):
        card_of(default_params, metrics)


def test_a_text_from_data_shows_as_text(default_params, metrics):
    body = card_of(default_params, metrics).split("---\n", 2)[2]
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(body)
    assert "<script" not in html
    assert "<a " not in html
    assert "<img" not in html
    assert (
        html.count("&lt;script&gt;alert(1)&lt;/script&gt; | [a](http://example.org) `b` *c* _d_ ~~e~~ &amp;amp;") >= 2
    )
    assert html.count("<h1>") == 1
    assert html.count("<table>") == 7, "a header without bars of its own makes no table"
