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

WRITTEN = [
    *(f"predictions/analysis/{name}" for name in ("errors.json", "suspects.csv")),
    *(f"metrics/{name}.json" for name in ("slices", "robustness", "challenges")),
    *(f"plots/slices/{name}" for name in ("sst.csv", "sts.csv")),
    "models/README.md",
]


def run_stage(params):
    analyze(
        params, splits="data/splits", models="models", predictions="predictions",
        metrics="metrics", plots="plots", card="models/README.md",
    )  # fmt: skip


def test_it_writes_all_that_is_promised_and_the_same_bytes_again(finished, monkeypatch):
    run_stage(finished.params())
    first = {name: Path(name).read_bytes() for name in WRITTEN}
    reads = Reads(monkeypatch)
    run_stage(finished.params())
    assert {name: Path(name).read_bytes() for name in WRITTEN} == first
    assert reads.untracked("analyze") == ["runtime.processes"]  # which fine-tuning alone heeds
    assert {"analyze.worst", "encoder.max_length", "mlm.enabled", "smart.lambda", "tasks"} <= reads.names
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
            assert ("confidence_before" in row["change"]) == (task != "sts")
            assert row["change"]["changed"] != row["texts"][row["change"]["text"]]
        assert slices[task]["all"]["all rows"]["n"] == len(dev)
    suspects = pd.read_csv("predictions/analysis/suspects.csv")
    assert list(suspects.columns) == ["task", "id", "label", "suggested", "doubt", "text", "text_b"]
    for changes in read_json("metrics/robustness.json").values():
        assert changes["model"] == "base" and changes["clause_appended"]["shift"] > 0
        assert changes["lower_case"]["flips"] == changes["upper_case"]["flips"] == 0, "the encoder reads no case"


def test_dev_without_labels_three_rows_and_a_pair_encoded_apart(run, capsys):
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
    assert set(read_json("metrics/slices.json")) == {"sst"}, "three rows say nothing"
    assert "qqp" in read_json("metrics/robustness.json"), "a changed text needs no label"
    assert not Path("plots/slices/qqp.csv").exists()


def test_rows_that_an_ensemble_was_chosen_on_are_left_out_and_a_challenge_of_the_others_has_the_figures_of_dev(run):
    """Those of the member that is asked, not of the ensemble."""
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
    found = read_json("metrics/challenges.json")["again"]
    assert found["model"] == "base" and found["dev"] == {metric: found[metric] for metric in found["dev"]}
    own = tables["base"][(tables["base"]["task"] == "sst") & (tables["base"]["split"] == "dev")]
    own = own[own["id"].isin(kept)]
    assert found["dev"]["accuracy"] == (own["prediction"] == own["label"]).mean()


def test_predictions_of_other_rows_are_an_error(finished):
    table = read_predictions("predictions/ensemble.parquet")
    write_predictions(table.drop(index=0), "predictions/ensemble.parquet")
    with pytest.raises(UserError, match="for 39 rows of dev of task sst, expected one for each of these 40;"):
        run_stage(finished.params())
