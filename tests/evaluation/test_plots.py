import numpy as np
import pandas as pd
import pytest

from bertrio.core.tasks import Binary, Classes, Ordered, Score, Task
from bertrio.evaluation.plots import slices_picture, write_plots
from bertrio.evaluation.predictions import prediction_rows

TASKS = {
    task.name: task
    for task in (
        Task("topic", "single", "cross", Classes(20)),
        Task("stars", "single", "cross", Ordered(5)),
        Task("same", "pair", "cross", Binary()),
        Task("near", "pair", "cross", Score(-1.0, 1.0)),
    )
}
CONFLICTS = ["step", "task_a", "task_b", "dot", "cosine", "norm_a", "norm_b"]


def predictions(rows=60, labelled=True) -> pd.DataFrame:
    generator, parts = np.random.default_rng(0), []
    for task in TASKS.values():
        allowed = [label for label in np.arange(-1, 20, 0.5) if task.target.label_problem(label) is None]
        labels = generator.choice(allowed, rows) if labelled else np.full(rows, np.nan)
        ids = [f"row $^{i}_" for i in range(rows)]
        parts.append(prediction_rows(task, "dev", ids, labels, generator.normal(0, 1.5, (rows, task.target.size))))
    return pd.concat(parts, ignore_index=True)


def write_training(folder, members):
    for name in ("history", "conflicts"):
        (folder / name).mkdir(parents=True)
    for place, member in enumerate(members, start=1):
        history = pd.DataFrame({"epoch": [1, 2], "step": [50, 100]})
        for name, task in TASKS.items():
            history[f"train_loss_{name}"] = [2.0 * place, 1.0 * place]
            history[f"dev_{name}_{task.target.metrics[0]}"] = [0.5, 0.6]
        history.to_csv(folder / "history" / f"{member}.csv", index=False)
        rows = [[step, "stars", "same", 0, np.sin(step), 1, 1] for step in range(1, 101)] if place % 2 else []
        pd.DataFrame(rows, columns=CONFLICTS).to_csv(folder / "conflicts" / f"{member}.csv", index=False)


def draw(folder, frame, members=("base", "second", "third")):
    write_training(folder, members)
    write_plots(frame, TASKS, folder, members)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("plots"), predictions())


def test_every_kind_of_task_has_its_tables(drawn, tmp_path):
    tables = {f"{kind}/{task}.csv" for kind in ("confusion", "reliability") for task in ("topic", "stars", "same")}
    tables |= {"scores/near.csv", "learning/loss/near.csv", "learning/score/topic.csv", "pictures/conflicts.png"}
    assert tables <= set(drawn)
    assert "confusion/near.csv" not in drawn and "scores/topic.csv" not in drawn
    stars = predictions().query("task == 'stars'")
    (tmp_path / "stars.csv").write_bytes(drawn["confusion/stars.csv"])
    assert pd.read_csv(tmp_path / "stars.csv").to_numpy().tolist() == stars[["label", "prediction"]].to_numpy().tolist()
    assert drawn["scores/near.csv"].decode().count("\n") == 61


def test_pictures_are_the_same_bytes_whatever_the_users_settings(drawn, tmp_path):
    import matplotlib

    with matplotlib.rc_context({"figure.dpi": 40, "font.size": 20, "axes.facecolor": "black"}):
        assert draw(tmp_path / "plots", predictions()) == drawn
        assert matplotlib.rcParams["font.size"] == 20
    assert b"tIME" not in drawn["pictures/conflicts.png"] and b"atplotlib" not in drawn["pictures/conflicts.png"]


def test_learning_tables_are_means_over_the_members_of_the_ensemble(drawn, tmp_path):
    assert drawn["learning/loss/stars.csv"] == b"step,loss\n50,4\n100,2\n"  # of 2, 4, 6 and of 1, 2, 3
    assert drawn["learning/score/near.csv"] == b"step,score\n50,0.5\n100,0.6\n"
    write_training(tmp_path, ["kept", "dropped"])
    write_plots(predictions().head(0), TASKS, tmp_path, ["kept"])
    assert (tmp_path / "learning/loss/stars.csv").read_text() == "step,loss\n50,2\n100,1\n"


def test_without_labels_and_training_the_folders_are_there_and_hold_no_picture(tmp_path):
    assert not [name for name in draw(tmp_path, predictions(labelled=False), members=()) if name.endswith(".png")]
    assert {"confusion", "reliability", "scores", "learning", "pictures"} <= {path.name for path in tmp_path.iterdir()}


def test_slices_beyond_the_whole_are_marked_and_slices_without_a_value_left_out(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures, savefig = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), savefig(self, *a, **k))[1])
    rows = [
        ("all", "all", 900, 0.6, 0.55, 0.65),
        ("length", "short $", 300, 0.8, 0.7, 0.9),
        ("length", "long", 300, 0.4, 0.3, 0.5),
        ("length", "other", 300, 0.6, 0.5, 0.7),
        ("negation", "none", 0, np.nan, np.nan, np.nan),
    ]
    slices = pd.DataFrame(rows, columns=["family", "slice", "n", "value", "low", "high"])
    slices_picture(slices, "stars", tmp_path / "a.png", "accuracy")
    [axes] = figures[0].axes
    names = [label.get_text().split("  ")[0] for label in axes.get_yticklabels()]
    assert names == [r"length: short \$", "length: long", "length: other"]
    assert len({line.get_color() for line in axes.lines[1::2]}) == 3
