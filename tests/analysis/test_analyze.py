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

WRITTEN = (
    "predictions/analysis/errors.json",
    "predictions/analysis/suspects.csv",
    "metrics/slices.json",
    "metrics/robustness.json",
    "metrics/challenges.json",
    "plots/slices/sst.csv",
    "plots/slices/sst.png",
    "plots/slices/sts.csv",
    "models/README.md",
)


def run_stage(params):
    analyze(
        params, splits="data/splits", models="models", predictions="predictions",
        metrics="metrics", plots="plots", card="models/README.md",
    )  # fmt: skip


def test_it_writes_all_that_is_promised_and_the_same_bytes_again(finished):
    run_stage(finished.params())
    first = {name: Path(name).read_bytes() for name in WRITTEN}
    run_stage(finished.params())
    assert {name: Path(name).read_bytes() for name in WRITTEN} == first
    table = read_predictions("predictions/ensemble.parquet")
    errors, slices = read_json("predictions/analysis/errors.json"), read_json("metrics/slices.json")
    for task in ("sst", "qqp", "sts"):
        dev = read_table(f"data/splits/{task}/dev.parquet").set_index("id")
        said = table[(table["task"] == task) & (table["split"] == "dev")].set_index("id")
        assert len(errors[task]) == 4
        row_error = [row.get("confidence", row.get("error")) for row in errors[task]]
        assert row_error == sorted(row_error, reverse=True)
        for row in errors[task]:
            assert row["label"] == dev.loc[row["id"], "label"]
            assert row["prediction"] == pytest.approx(said.loc[row["id"], "prediction"], abs=1e-6)
            assert row["texts"] == [dev.loc[row["id"], column] for column in dev.columns[:-1]]
            assert len(row["neighbours"]) == 3
            assert row["change"]["before"] == pytest.approx(row["prediction"], abs=1e-5)
            assert row["change"]["changed"] != row["texts"][row["change"]["text"]]
        assert slices[task]["all"]["all rows"]["n"] == len(dev)
    suspects = pd.read_csv("predictions/analysis/suspects.csv")
    assert list(suspects.columns) == ["task", "id", "label", "suggested", "doubt", "text", "text_b"]
    assert Path("predictions/analysis/suspects.csv").read_text().startswith('"task",'), "texts may hold line ends"
    for changes in read_json("metrics/robustness.json").values():
        assert changes["model"] == "base" and changes["clause_appended"]["shift"] > 0
        assert changes["lower_case"]["flips"] == changes["upper_case"]["flips"] == 0, "the encoder reads no case"


def test_it_reads_no_param_that_dvc_does_not_track(finished, monkeypatch):
    reads = Reads(monkeypatch)
    run_stage(finished.params())
    assert reads.untracked("analyze") == ["runtime.processes"]  # which fine-tuning alone heeds
    assert {"analyze.worst", "encoder.max_length", "mlm.enabled", "smart.lambda", "tasks"} <= reads.names


def test_dev_without_labels_is_said_and_leaves_the_rest(run, capsys):
    dev = read_table("data/splits/qqp/dev.parquet")
    run.write("qqp", "dev", dev.assign(label=np.nan))
    run.train()
    run_stage(run.combine())
    told = " ".join(capsys.readouterr().err.split())
    assert "analyze: dev of qqp has no labelled rows to look for errors in" in told
    assert read_json("predictions/analysis/errors.json")["qqp"] == []
    assert set(read_json("metrics/slices.json")) == {"sst", "sts"}
    assert "qqp" in read_json("metrics/robustness.json"), "a changed text needs no label"
    assert not Path("plots/slices/qqp.csv").exists()


def test_dev_as_a_challenge_has_the_figures_of_dev(run):
    """Of the member that is asked, which are not those of the ensemble."""
    read_table("data/splits/sst/dev.parquet").to_csv("again.csv", index=False)
    members = {"base": {}, "second": {}}
    challenges = {"again": {"task": "sst", "path": "again.csv"}}
    params = run.params(ensemble={"members": members}, evaluate={"challenges": challenges})
    tables = {name: run.train(name) for name in members}
    run.combine("mean")
    run_stage(params)
    found = read_json("metrics/challenges.json")["again"]
    assert found["model"] == "base" and found["dev"] == {metric: found[metric] for metric in found["dev"]}
    own = tables["base"][(tables["base"]["task"] == "sst") & (tables["base"]["split"] == "dev")]
    assert found["dev"]["accuracy"] == (own["prediction"] == own["label"]).mean()


def test_three_rows_and_a_pair_encoded_apart(run):
    overrides = {"tasks": {"qqp": {"encoding": "bi", "head": "siamese"}, "sts": {"encoding": "bi", "head": "cosine"}}}
    for task in ("sst", "qqp", "sts"):
        for split in ("train", "dev"):
            run.write(task, split, read_table(f"data/splits/{task}/{split}.parquet").head(3))
    run.params(**overrides)
    run.train()
    run_stage(run.combine())
    assert len(read_json("predictions/analysis/errors.json")["sts"]) == 3
    assert read_json("metrics/slices.json") == {}, "three rows say nothing"


def test_rows_that_an_ensemble_was_chosen_on_are_left_out(run):
    members = {"base": {}, "second": {}}
    run.params(ensemble={"members": members, "combine": "greedy"})
    for name in members:
        run.train(name)
    run_stage(run.combine("greedy"))
    table = read_predictions("predictions/ensemble.parquet")
    kept = table[(table["task"] == "sst") & (table["split"] == "dev")]["id"]
    assert 0 < len(kept) < 40
    assert read_json("metrics/slices.json")["sst"]["all"]["all rows"]["n"] == len(kept)
    assert {row["id"] for row in read_json("predictions/analysis/errors.json")["sst"]} <= set(kept)


def test_predictions_of_other_rows_are_an_error(finished):
    table = read_predictions("predictions/ensemble.parquet")
    write_predictions(table.drop(index=0), "predictions/ensemble.parquet")
    with pytest.raises(UserError, match="for 39 rows of dev of task sst, expected one for each of these 40;"):
        run_stage(finished.params())
