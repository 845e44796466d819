"""The whole stage on a small run."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bertrio.analysis.analyze import analyze
from bertrio.core.errors import UserError
from bertrio.core.files import read_json
from bertrio.data.table import read_table
from bertrio.evaluation.predictions import read_predictions, write_predictions
from tests.reading import Reads

OUTPUTS = [
    *(f"predictions/analysis/{name}" for name in ("errors.json", "suspects.csv")),
    *(f"metrics/{name}.json" for name in ("slices", "robustness", "challenges")),
    *(f"plots/slices/{name}" for name in ("sst.csv", "sts.csv")),
    "models/README.md",
]


def run_stage(params):
    analyze(params, "data/splits", "models", "predictions", "metrics", "plots", card="models/README.md")


def test_outputs_are_complete_and_deterministic(finished, monkeypatch):
    run_stage(finished.params())
    first = {name: Path(name).read_bytes() for name in OUTPUTS}
    reads = Reads(monkeypatch)
    run_stage(finished.params())
    assert {name: Path(name).read_bytes() for name in OUTPUTS} == first
    assert reads.untracked("analyze") == ["runtime.processes"]  # read by fine-tuning only
    assert {"analyze.worst", "encoder.max_length", "mlm.enabled", "smart.lambda", "tasks"} <= reads.names
    table = read_predictions("predictions/ensemble.parquet")
    errors, slices = read_json("predictions/analysis/errors.json"), read_json("metrics/slices.json")
    for task in ("sst", "qqp", "sts"):
        dev = read_table(f"data/splits/{task}/dev.parquet").set_index("id")
        predicted = table[(table["task"] == task) & (table["split"] == "dev")].set_index("id")
        assert len(errors[task]) == 4
        row_error = [row.get("confidence", row.get("error")) for row in errors[task]]
        assert row_error == sorted(row_error, reverse=True)
        for row in errors[task]:
            assert row["label"] == dev.loc[row["id"], "label"]
            assert row["prediction"] == pytest.approx(predicted.loc[row["id"], "prediction"], abs=1e-6)
            assert row["texts"] == [dev.loc[row["id"], column] for column in dev.columns[:-1]]
            assert len(row["neighbours"]) == 3
            assert row["change"]["before"] == pytest.approx(row["prediction"], abs=1e-5)
            assert ("confidence_before" in row["change"]) == (task != "sts")
            assert row["change"]["changed"] != row["texts"][row["change"]["text"]]
        assert slices[task]["all"]["all rows"]["n"] == len(dev)
    suspects = pd.read_csv("predictions/analysis/suspects.csv")
    assert list(suspects.columns) == ["task", "id", "label", "suggested", "doubt", "text", "text_b"]
    for changes in read_json("metrics/robustness.json").values():
        assert changes["model"] == "base" and changes["clause_appended"]["shift"] > 0
        assert changes["lower_case"]["flips"] == changes["upper_case"]["flips"] == 0, "the encoder is uncased"


def test_unlabelled_dev_few_rows_and_bi_encoded_pairs(run, capsys):
    overrides = {"tasks": {"qqp": {"encoding": "bi", "head": "siamese"}, "sts": {"encoding": "bi", "head": "cosine"}}}
    dev = read_table("data/splits/qqp/dev.parquet")
    run.write("qqp", "dev", dev.assign(label=np.nan))
    for split in ("train", "dev"):
        run.write("sts", split, read_table(f"data/splits/sts/{split}.parquet").head(3))
    run.params(**overrides)
    run.train()
    run_stage(run.combine())
    printed = " ".join(capsys.readouterr().err.split())

    assert "analyze: qqp, 0 labelled rows of dev" in printed
    worst = read_json("predictions/analysis/errors.json")
    assert (len(worst["sst"]), len(worst["qqp"]), len(worst["sts"])) == (4, 0, 3)
    assert set(read_json("metrics/slices.json")) == {"sst"}, "three rows are too few for slices"
    assert "qqp" in read_json("metrics/robustness.json"), "robustness needs no labels"
    assert not Path("plots/slices/qqp.csv").exists()


def test_selection_rows_are_left_out(run):
    """A challenge file of the other rows gets the dev figures of the member, not of the ensemble."""
    members = {"base": {}, "second": {}}
    challenges = {"again": {"task": "sst", "path": "again.csv"}}
    params = run.params(ensemble={"members": members, "combine": "greedy"}, evaluate={"challenges": challenges})
    tables = {name: run.train(name) for name in members}
    run.combine("greedy")
    table = read_predictions("predictions/ensemble.parquet")
    kept = table[(table["task"] == "sst") & (table["split"] == "dev")]["id"]
    assert 0 < len(kept) < 40
    dev = read_table("data/splits/sst/dev.parquet")
    dev[dev["id"].isin(kept)].to_csv("again.csv", index=False)
    run_stage(params)
    assert read_json("metrics/slices.json")["sst"]["all"]["all rows"]["n"] == len(kept)
    assert {row["id"] for row in read_json("predictions/analysis/errors.json")["sst"]} <= set(kept)
    challenge = read_json("metrics/challenges.json")["again"]
    assert challenge["model"] == "base" and challenge["dev"] == {name: challenge[name] for name in challenge["dev"]}
    rows = tables["base"].query("task == 'sst' and split == 'dev' and id in @kept")
    assert challenge["dev"]["accuracy"] == (rows["prediction"] == rows["label"]).mean()


def test_missing_predictions_are_an_error(finished):
    table = read_predictions("predictions/ensemble.parquet")
    write_predictions(table.drop(index=0), "predictions/ensemble.parquet")
    with pytest.raises(UserError, match="for 39 rows of dev of task sst, expected one for each of these 40;"):
        run_stage(finished.params())
