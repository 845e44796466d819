"""The model card: valid front matter, no claim without a source, and data shown as plain text."""

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
    """The metric files that the card is built from."""
    write_metric_files(tmp_path / "metrics")
    return tmp_path / "metrics"


def render_card(params, metrics):
    path = metrics.parent / "models" / "README.md"
    write_card(params, build_tasks(params), metrics=metrics, path=path)
    return path.read_text(encoding="utf-8")


def section(text, title):
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rewrite_data(metrics, **changes):
    write_json(metrics / "data.json", read_json(metrics / "data.json") | changes)


def test_card_is_complete_and_its_front_matter_parses(default_params, metrics):
    text = render_card(default_params, metrics)
    expected = ["7 of 1,000 rows of sst dev", "chosen on dev", "Not measured on test", "Predictor.load", "base: 3"]
    for fragment in sum(SHOWN.values(), expected):
        assert fragment in text, fragment
    for title in ("Use", "Data and licences", "Training", "Metrics", "Slices", "Challenge files", "How to load"):
        assert f"\n## {title}\n" in text
    limits = section(text, "Limits")
    assert "negation: with" in limits
    assert "negation: few" not in limits and "all rows" not in limits, "only slices with enough rows count as weak"
    data = ModelCard(text).data
    values = {(row.task_name, row.dataset_split, row.metric_type): row.metric_value for row in data.eval_results}
    assert values["sst", "dev", "accuracy"] == 0.862 and values["sts", "dev", "pearson"] == 0.925
    assert (data.metrics, data.language) == (["accuracy", "pearson"], "en")


def test_hub_encoder_and_datasets_are_named(root, metrics):
    ids = {"sst": "SetFit/sst5", "qqp": "nyu-mll/glue", "sts": "mteb/stsbenchmark-sts"}
    rewrite_data(metrics, source="hub", origin={name: {"id": hub_id, "commit": "abc"} for name, hub_id in ids.items()})
    text = render_card(params_with(root, data={"source": "hub"}, encoder={"name": "google/bert"}), metrics)
    front = yaml.safe_load(text.split("---")[1])
    assert (front["base_model"], front["datasets"]) == ("google/bert", list(ids.values()))
    assert "language" not in front
    assert "nyu-mll/glue, commit abc | unknown" in text


def test_local_paths_stay_private_and_licences_unknown(root, metrics, tmp_path):
    (tmp_path / "someone" / "encoder").mkdir(parents=True)
    rewrite_data(metrics, source="cs224n", origin={}, extra_train={"sst": "reviews.tsv"})
    overrides = {"data": {"source": "cs224n", "path": "/someone/course"}}
    text = render_card(params_with(root, encoder={"name": str(tmp_path / "someone" / "encoder")}, **overrides), metrics)
    assert "encoder, from a local folder" in text
    assert "someone" not in text and "base_model" not in text
    assert text.count("| unknown |") >= 3 and "must be looked up" in text
    (row,) = [line for line in text.splitlines() if "reviews.tsv" in line]
    assert "a file of the user's own | unknown" in row


def test_figures_of_a_single_member_say_so(root, default_params, metrics):
    caption = "One member was asked for each task, not the ensemble: base for "
    assert caption not in render_card(default_params, metrics)
    text = render_card(params_with(root, ensemble={"members": {"base": {}, "second": {}}}), metrics)
    assert f"{caption}sst." in section(text, "Robustness")
    assert f"{caption}qqp." in section(text, "Challenge files")


def test_card_names_what_members_change(root, metrics):
    members = {"base": {"runtime": {"seed": 11}}, "other": {"finetune": {"lr": 3e-5}}}
    text = render_card(params_with(root, ensemble={"combine": "mean", "members": members}), metrics)
    assert "Member base: runtime.seed 11. Member other: finetune.lr 3e-05." in text


def test_sections_follow_the_metric_files(default_params, metrics):
    titles = ("Slices", "Calibration", "Robustness", "Challenge files")
    for title in titles:
        (metrics / f"{title.split()[0].lower().replace('challenge', 'challenges')}.json").unlink()
    text = render_card(default_params, metrics)
    assert not [title for title in titles if f"\n## {title}\n" in text]
    (metrics / "evaluation.json").unlink()
    with pytest.raises(UserError, match="evaluation.json.*dvc repro"):
        render_card(default_params, metrics)


def test_text_from_data_is_escaped(default_params, metrics):
    body = render_card(default_params, metrics).split("---\n", 2)[2]
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(body)
    assert not re.search("<script|<a |<img|<!--", html)
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt; | [a](http://example.org) `b` *c* _d_ ~~e~~ &amp;amp;") > 1
    assert html.count("<h1>") == 1
    assert html.count("<table>") == 7, "text from data makes no table"
