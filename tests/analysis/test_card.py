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
from bertrio.core.files import read_json, write_json
from tests.metric_files import SHOWN, write_metric_files


def params_with(root, **overrides):
    return validate_params(merged(read_yaml(root / "params.yaml"), overrides), "params.yaml")


@pytest.fixture
def metrics(tmp_path):
    """What the stages leave for the card."""
    write_metric_files(tmp_path / "metrics")
    return tmp_path / "metrics"


def card_of(params, metrics):
    path = metrics.parent / "models" / "README.md"
    write_card(params, build_tasks(params), metrics=metrics, path=path)
    return path.read_text(encoding="utf-8")


def section(text, title):
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rewrite_data(metrics, **changes):
    write_json(metrics / "data.json", read_json(metrics / "data.json") | changes)


def test_it_is_filled_in_and_the_hub_reads_its_front_matter(default_params, metrics):
    text = card_of(default_params, metrics)
    expected = ["7 of 1,000 rows of sst dev", "chosen on dev", "Not measured on test", "Predictor.load", "base: 3"]
    for fragment in sum(SHOWN.values(), expected):
        assert fragment in text, fragment
    for title in ("Use", "Data and licences", "Training", "Metrics", "Slices", "Challenge files", "How to load"):
        assert f"\n## {title}\n" in text
    limits = section(text, "Limits")
    assert "negation: with" in limits
    assert "negation: few" not in limits and "all rows" not in limits, "the weakest slices that have rows enough"
    data = ModelCard(text).data
    values = {(one.task_name, one.dataset_split, one.metric_type): one.metric_value for one in data.eval_results}
    assert values["sst", "dev", "accuracy"] == 0.862 and values["sts", "dev", "pearson"] == 0.925
    assert (data.metrics, data.language) == (["accuracy", "pearson"], "en")


def test_a_hub_encoder_and_data_sets_are_named(root, metrics):
    ids = {"sst": "SetFit/sst5", "qqp": "nyu-mll/glue", "sts": "mteb/stsbenchmark-sts"}
    rewrite_data(metrics, source="hub", origin={name: {"id": hub_id, "commit": "abc"} for name, hub_id in ids.items()})
    text = card_of(params_with(root, data={"source": "hub"}, encoder={"name": "google/bert"}), metrics)
    front = yaml.safe_load(text.split("---")[1])
    assert (front["base_model"], front["datasets"]) == ("google/bert", list(ids.values()))
    assert "language" not in front
    assert "nyu-mll/glue, commit abc | unknown" in text


def test_places_on_disk_stay_private_and_licences_unknown(root, metrics, tmp_path):
    (tmp_path / "someone" / "encoder").mkdir(parents=True)
    rewrite_data(metrics, source="cs224n", origin={}, extra_train={"sst": "reviews.tsv"})
    overrides = {"data": {"source": "cs224n", "path": "/someone/course"}}
    text = card_of(params_with(root, encoder={"name": str(tmp_path / "someone" / "encoder")}, **overrides), metrics)
    assert "encoder, from a local folder" in text
    assert "someone" not in text and "base_model" not in text
    assert text.count("| unknown |") >= 3 and "must be looked up" in text
    (row,) = [line for line in text.splitlines() if "reviews.tsv" in line]
    assert "a file of the user's own | unknown" in row


def test_figures_of_one_member_are_not_passed_off_as_the_ensembles(root, default_params, metrics):
    caption = "One member was asked for each task, not the ensemble: base for "
    assert caption not in card_of(default_params, metrics)
    text = card_of(params_with(root, ensemble={"members": {"base": {}, "second": {}}}), metrics)
    assert f"{caption}sst." in section(text, "Robustness")
    assert f"{caption}qqp." in section(text, "Challenge files")


def test_what_was_not_measured_has_no_section_and_what_must_be_there_is_an_error(default_params, metrics):
    titles = ("Slices", "Calibration", "Robustness", "Challenge files")
    for title in titles:
        (metrics / f"{title.split()[0].lower().replace('challenge', 'challenges')}.json").unlink()
    text = card_of(default_params, metrics)
    assert not [title for title in titles if f"\n## {title}\n" in text]
    (metrics / "evaluation.json").unlink()
    with pytest.raises(UserError, match="evaluation.json.*dvc repro"):
        card_of(default_params, metrics)


def test_a_text_from_data_shows_as_text(default_params, metrics):
    body = card_of(default_params, metrics).split("---\n", 2)[2]
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(body)
    assert not re.search("<script|<a |<img|<!--", html)
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt; | [a](http://example.org) `b` *c* _d_ ~~e~~ &amp;amp;") > 1
    assert html.count("<h1>") == 1
    assert html.count("<table>") == 7, "a header without bars of its own makes no table"
