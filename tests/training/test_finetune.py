import pandas as pd
import pytest
import torch

from bertrio.core.errors import UserError
from bertrio.core.files import read_json
from bertrio.data.table import read_table, write_table
from bertrio.evaluation.predictions import read_predictions
from bertrio.training.finetune import Inputs, Selection, load_rows, predict
from tests.training.conftest import TASKS, run, saved_model, split_of


def test_the_best_epoch_is_saved_and_predicts_all_rows_in_order(workspace):
    params = workspace.params(finetune={"epochs": 4, "lr": 0.02, "select": "sst"})
    assert run(params, "a")["steps"] == 32
    history, summary = pd.read_csv("a/h.csv"), read_json("a/out/summary.json")
    assert summary["best_epoch"] == history["epoch"][history["dev_sst_accuracy"].idxmax()]
    assert summary["best_epoch"] < 4, "the best epoch must not be the last one"
    assert summary["selected_on"] == {"rows": "dev", "by": "sst"}
    model = saved_model(params, "a/model")
    table = read_predictions("a/out/predictions.parquet")
    for split in ("dev", "test"):
        expected = predict(model, split_of(params, split), split, 64)
        saved = table[table["split"] == split].reset_index(drop=True)
        pd.testing.assert_frame_equal(expected, saved, check_dtype=False)  # the dtype of labels that are all missing
        ids = pd.concat(read_table(f"data/splits/{task}/{split}.parquet")["id"] for task in TASKS)
        assert saved["id"].tolist() == ids.tolist() and saved["label"].isna().all() == (split == "test")


def test_holdout_is_scored_and_not_trained_on(workspace):
    params = workspace.params(finetune={"train_metrics": True, "select_on": "holdout"})
    train, scored, _ = load_rows(params, Inputs())
    single = load_rows(workspace.params(finetune={"train_metrics": ["sst"]}), Inputs())[1]["train"]
    assert (list(scored["train"]), list(single)) == (list(train), ["sst"])
    for task in train:
        trained, held_out = set(train[task].ids), set(scored["holdout"][task].ids)
        assert held_out and not trained & held_out and len(trained | held_out) == 60
    run(params, "a")
    history = pd.read_csv("a/h.csv")
    assert history["epoch"].tolist() == [1, 2]
    for column in ("lr", "step", "train_loss_qqp", "dev_qqp_f1", "train_sts_pearson", "holdout_overall_normalized"):
        assert history[column].notna().all(), column
    assert read_json("a/out/summary.json")["selected_on"]["rows"] == "holdout"
    assert set(read_predictions("a/out/predictions.parquet")["split"]) == {"dev", "test"}


def test_tasks_without_a_step_do_not_count_as_trained(workspace, capsys):
    run(workspace.params(schedule={"name": "sequential"}, finetune={"max_steps": 2, "select": "last"}), "a")
    assert read_json("a/model/bertrio.json")["trained"] == ["sst"]
    assert "qqp, sts: not" in (log := capsys.readouterr().err) and "best so far" not in log


def test_lr_warms_up_to_its_peak_and_decays_to_0(workspace):
    tiny = {"tiny": {"lr_factor": 20.0}}
    options = {"finetune": {"lr": 1e-4, "max_steps": 10}, "optimizer": {"warmup_fraction": 0.2}}
    run(workspace.params(encoder=tiny, tracking={"every": 1}, **options), "a")
    # two steps of warm-up to 20 x 1e-4, then linear to 0 after the tenth
    by_hand = [2e-3 * factor for factor in (1 / 3, 2 / 3, *[1 - step / 8 for step in range(8)])]
    assert pd.read_csv("a/steps.csv")["lr"].tolist() == pytest.approx(by_hand, rel=1e-4)


def test_selection_keeps_the_first_best_or_the_last_epoch(default_tasks):
    model = torch.nn.Linear(1, 1)

    def select(by, scores):
        selection = Selection(by, "dev")
        for epoch, score in enumerate(scores, start=1):
            torch.nn.init.constant_(model.weight, epoch)
            selection.offer(model, epoch, {"dev": {"sst": {"accuracy": score}}}, default_tasks, tables[epoch - 1])
        selection.restore(model)
        assert selection.summary()["selected_on"]["rows"] == ("none" if by == "last" else "dev")
        return selection.best_epoch, model.weight.item(), tables.index(selection.predictions)

    tables = [object() for _ in range(4)]
    assert select("sst", [0.1, 0.3, 0.3, 0.2]) == (2, 2.0, 1)
    assert select("last", [0.1, 0.3, 0.3, 0.2]) == (4, 4.0, 3)


def test_splits_without_labels_to_train_on_or_rows_are_errors(workspace):
    train, dev = (f"data/splits/qqp/{split}.parquet" for split in ("train", "dev"))
    write_table(read_table(train).assign(label=float("nan")), train)
    with pytest.raises(UserError, match=r"qqp/train\.parquet: no row to train on has a label; raise data\.split\.keep"):
        load_rows(workspace.params(), Inputs())
    write_table(read_table(dev).head(0), dev)
    with pytest.raises(UserError, match=r"qqp/dev\.parquet: found no rows; see data\.split"):
        run(workspace.params(), "a")
