import numpy as np
import pandas as pd
import pytest

from bertrio.core.tasks import Binary, Classes, Ordered, Score, Task
from bertrio.evaluation.metrics import Scored
from bertrio.evaluation.pictures import (
    _losses,
    confusion_picture,
    learning_picture,
    slices_picture,
    write_plots,
)
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


def made_up(tasks=TASKS, rows=60, labelled=True) -> pd.DataFrame:
    generator, parts = np.random.default_rng(0), []
    for task in tasks.values():
        allowed = [label for label in np.arange(-1, 20, 0.5) if task.target.label_problem(label) is None]
        labels = generator.choice(allowed, rows) if labelled else np.full(rows, np.nan)
        ids = [f"row $^{i}_ of a rather long name" for i in range(rows)]  # neither formulas nor pages of text
        parts.append(prediction_rows(task, "dev", ids, labels, generator.normal(0, 1.5, (rows, task.target.size))))
    return pd.concat(parts, ignore_index=True)


def write_training(folder, members, tasks=TASKS):
    for name in ("history", "conflicts", "steps"):
        (folder / name).mkdir(parents=True)
    for place, member in enumerate(members, start=1):
        history = pd.DataFrame({"epoch": [1, 2], "step": [50, 100]})
        for name, task in tasks.items():
            history[f"train_loss_{name}"] = [2.0 * place, 1.0 * place]
            history[f"dev_{name}_{task.target.metrics[0]}"] = [0.5, 0.6]
        history["train_loss_smart_same"] = [1e-6, 2e-6]
        history.to_csv(folder / "history" / f"{member}.csv", index=False)
        columns = ["step", "task_a", "task_b", "dot", "cosine", "norm_a", "norm_b"]
        cosines = [[step, "stars", "same", 0, np.sin(step), 1, 1] for step in range(1, 101)]
        # every other member logged no conflicts, or no steps: the files have their header alone
        rows = cosines if place % 2 else []
        pd.DataFrame(rows, columns=columns).to_csv(folder / "conflicts" / f"{member}.csv", index=False)
        steps = pd.DataFrame({"step": range(1, 101), "loss_stars": np.geomspace(2, 1, 100)})
        (steps.head(0) if place % 2 else steps).to_csv(folder / "steps" / f"{member}.csv", index=False)


def draw(folder, frame, tasks=TASKS, members=("base", "second", "third")):
    write_training(folder, members, tasks)
    write_plots(frame, tasks, folder, folder / "history", folder / "conflicts", members, folder / "steps")
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("plots"), made_up())


def test_every_kind_of_task_has_its_pictures_and_tables(drawn):
    pictures = {name.removeprefix("pictures/") for name in drawn if name.startswith("pictures/")}
    classes = {f"{kind}-{task}.png" for kind in ("confusion", "reliability") for task in ("topic", "stars", "same")}
    assert pictures == classes | {"scores-near.png", "learning.png", "conflicts.png"}
    tables = {f"{kind}/{task}.csv" for kind in ("confusion", "reliability") for task in ("topic", "stars", "same")}
    assert tables | {"scores/near.csv", "learning/loss/near.csv", "learning/score/topic.csv"} <= set(drawn)


def test_the_same_predictions_make_the_same_bytes_whatever_the_users_settings(drawn, tmp_path):
    import matplotlib

    with matplotlib.rc_context({"figure.dpi": 40, "font.size": 20, "axes.facecolor": "black"}):
        again = draw(tmp_path / "plots", made_up())
        assert matplotlib.rcParams["font.size"] == 20
    assert again == drawn


def test_pictures_hold_neither_time_nor_version(drawn):
    for name, content in drawn.items():
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")
            assert b"Software" not in content and b"atplotlib" not in content and b"tIME" not in content


def test_tables_hold_every_row_of_dev(drawn, tmp_path):
    frame = made_up()
    (tmp_path / "stars.csv").write_bytes(drawn["confusion/stars.csv"])
    own = frame[frame["task"] == "stars"]
    assert pd.read_csv(tmp_path / "stars.csv").to_numpy().tolist() == own[["label", "prediction"]].to_numpy().tolist()
    assert drawn["scores/near.csv"].decode().count("\n") == 61


def test_learning_tables_are_means_over_members(drawn):
    assert drawn["learning/loss/stars.csv"] == b"step,loss\n50,4\n100,2\n"  # of 2, 4, 6 and of 1, 2, 3
    assert drawn["learning/score/near.csv"] == b"step,score\n50,0.5\n100,0.6\n"


def test_members_that_were_dropped_are_left_out(tmp_path):
    write_training(tmp_path, ["kept", "dropped"])
    write_plots(made_up().head(0), TASKS, tmp_path, tmp_path / "history", tmp_path / "conflicts", ["kept"])
    assert (tmp_path / "learning/loss/stars.csv").read_text() == "step,loss\n50,2\n100,1\n"


def test_without_labels_and_training_the_folders_are_there_and_hold_no_picture(tmp_path):
    files = draw(tmp_path / "unlabelled", made_up(labelled=False), members=())
    assert not [name for name in files if name.endswith(".png")]
    for name in ("confusion", "reliability", "scores", "learning", "pictures"):
        assert (tmp_path / "unlabelled" / name).is_dir()


def test_a_row_is_enough(tmp_path):
    assert "pictures/scores-near.png" in draw(tmp_path / "few", made_up(rows=1), members=())


def test_a_model_that_always_says_the_same_with_full_confidence_can_be_drawn(tmp_path):
    frame = pd.concat(
        [
            prediction_rows(TASKS["stars"], "dev", list("abc"), [0, 1, 1], np.tile([1e3, 0, 0, 0, 0], (3, 1))),
            prediction_rows(TASKS["near"], "dev", list("abc"), [0, 1, -1], np.full((3, 1), 7.0)),
        ]
    )
    assert "pictures/reliability-stars.png" in draw(tmp_path / "stuck", frame, members=())


def test_many_members_and_pairs_of_tasks(tmp_path):
    members = [f"member{i}" for i in range(20)]
    write_training(tmp_path, members, {"same": TASKS["same"]})
    pairs = [(a, b) for a in "abcde" for b in "abcde" if a < b]
    rows = [[1, a, b, 0, 0.5, 1, 1] for a, b in pairs]
    columns = ["step", "task_a", "task_b", "dot", "cosine", "norm_a", "norm_b"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "conflicts/member0.csv", index=False)
    write_plots(made_up().head(0), {"same": TASKS["same"]}, tmp_path, tmp_path / "history", tmp_path / "conflicts")
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"learning.png", "conflicts.png"}


def texts_of(monkeypatch) -> list:
    """Every figure that is drawn from here on."""
    from matplotlib.figure import Figure

    figures, kept = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), kept(self, *a, **k))[1])
    return figures


def test_confusion_is_shares_of_the_gold_class_and_axes_say_what_they_are(tmp_path, monkeypatch):
    figures = texts_of(monkeypatch)
    probabilities = np.full((4, 3), 1 / 3)
    task = Task("t", "single", "cross", Classes(3, ("no", "maybe", "a dollar $ or two")))
    confusion_picture(
        Scored(np.array([0.0, 0, 0, 2]), np.array([0.0, 1, 0, 2]), probabilities), task, tmp_path / "a.png"
    )
    [axes] = figures[0].axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["no", "maybe", r"a dollar \$ o…"]
    shown = axes.images[0].get_array()
    np.testing.assert_allclose(np.ma.filled(shown, np.nan), [[2 / 3, 1 / 3, 0], [np.nan] * 3, [0, 0, 1]])
    assert {text.get_text() for text in axes.texts} == {"0.67", "0.33", "0.00", "1.00"}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "gold class")


def test_a_task_whose_name_ends_like_anothers_gets_its_own_regularizers(tmp_path, monkeypatch):
    figures = texts_of(monkeypatch)
    tasks = {"sts": TASKS["near"], "my_sts": TASKS["near"]}
    table = pd.DataFrame({"step": [1], "train_loss_sts": 1.0, "train_loss_my_sts": 1.0, "train_loss_smart_my_sts": 1.0})
    learning_picture({"base": table}, {}, tasks, tmp_path / "a.png")
    titles = [axes.get_title(loc="left") for axes in figures[0].axes if axes.get_visible()]
    assert "my_sts: smart" in titles and not any(title.startswith("sts:") and "smart" in title for title in titles)


def test_scores_of_a_task_named_after_a_loss_are_no_losses():
    table = pd.DataFrame(columns=["step", "train_loss_loss_x", "train_loss_smart_x", "loss_sts", "dev_loss_x_accuracy"])
    assert list(_losses(table)) == ["step", "loss_x", "smart_x", "sts"]


def test_slices_beyond_the_whole_are_marked_and_slices_without_a_value_left_out(tmp_path, monkeypatch):
    figures = texts_of(monkeypatch)
    rows = [
        ("all", "all", 900, 0.6, 0.55, 0.65),
        ("length", "short", 300, 0.8, 0.7, 0.9),
        ("length", "long", 300, 0.4, 0.3, 0.5),
        ("length", "other", 300, 0.6, 0.5, 0.7),
        ("negation", "none", 0, np.nan, np.nan, np.nan),
    ]
    slices = pd.DataFrame(rows, columns=["family", "slice", "n", "value", "low", "high"])
    slices_picture(slices, "stars", tmp_path / "a.png", "accuracy")
    [axes] = figures[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["length", "short", "long", "other"]
    colours = {text.get_text(): text.get_color() for text in axes.texts}
    assert len({colours[value] for value in ("0.800", "0.400", "0.600")}) == 3
