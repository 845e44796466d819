import io

import numpy as np
import pandas as pd
import pytest

from bertrio.analysis.figures import confusion
from bertrio.core.tasks import MultiLabel, Task
from bertrio.evaluation.canvas import picture, titled
from bertrio.evaluation.plots import sortable, write_plots
from bertrio.evaluation.predictions import prediction_rows
from tests.evaluation.tables import TASKS, predictions

MEMBERS = ("base", "second", "third")


def write_training(folder, members):
    (folder / "history").mkdir(parents=True)
    for number, member in enumerate(members, start=1):
        history = pd.DataFrame({"epoch": [1, 2], "step": [50, 100]})
        for name, task in TASKS.items():
            history[f"train_loss_{name}"] = [2.0 * number, 1.0 * number]
            history[f"dev_{name}_{task.target.metrics[0]}"] = [0.5, 0.6]
        history.to_csv(folder / "history" / f"{member}.csv", index=False)


def draw(folder, frame, members=MEMBERS):
    write_training(folder, members)
    write_plots(frame, TASKS, folder, members)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("plots"), predictions())


def test_each_kind_of_task_has_its_tables(drawn, tmp_path):
    tables = {f"{kind}/{task}.csv" for kind in ("confusion", "reliability") for task in ("sst", "qqp")}
    tables |= {"scores/sts.csv"}
    tables |= {f"learning/{column}/{task}.csv" for column in ("loss", "score") for task in TASKS}
    assert set(drawn) - tables == {f"history/{name}.csv" for name in MEMBERS}
    assert tables <= set(drawn)
    rows = predictions().query("task == 'sst' and split == 'dev'")[["label", "prediction"]]
    assert pd.read_csv(io.BytesIO(drawn["confusion/sst.csv"])).to_numpy().tolist() == rows.to_numpy().tolist()
    assert drawn["scores/sts.csv"].count(b"\n") == 1 + 40
    sets = Task("moods", "single", "cross", MultiLabel(2, labels=("none", "joy")))
    rows = prediction_rows(sets, "dev", ["a", "b"], np.array([1.0, 3.0]), np.array([[9.0, -9.0], [-9.0, 9.0]]))
    write_plots(rows, {"moods": sets}, tmp_path, ())
    counts = confusion(pd.read_csv(tmp_path / "confusion/moods.csv"), sets)
    assert list(counts) == ["none", "joy", "(none)"] and np.diag(counts).tolist() == [1, 1, 0]
    assert sortable("ab") == ["a", "b"] and sortable("ba") == ["0 b", "1 a"]
    assert sortable("cbaedfghijk") == sorted(sortable("cbaedfghijk"))


def test_pictures_do_not_depend_on_user_settings(tmp_path):
    import matplotlib

    def draw_line(name):
        with picture(tmp_path / name, (4, 3)) as figure:
            figure.add_subplot().plot([1, 3, 2])
            titled(figure, "Title", "a note")

    draw_line("a.png")
    with matplotlib.rc_context({"figure.dpi": 40, "font.size": 20, "axes.facecolor": "black"}):
        draw_line("b.png")
        assert matplotlib.rcParams["font.size"] == 20
    content = (tmp_path / "a.png").read_bytes()
    assert (tmp_path / "b.png").read_bytes() == content and b"tIME" not in content and b"atplotlib" not in content


def test_learning_tables_average_the_members(drawn, tmp_path):
    assert drawn["learning/loss/sst.csv"] == b"step,loss\n50,4\n100,2\n"  # of 2, 4, 6 and of 1, 2, 3
    assert drawn["learning/score/sts.csv"] == b"step,score\n50,0.5\n100,0.6\n"
    write_training(tmp_path, ["kept", "dropped"])
    write_plots(predictions().head(0), TASKS, tmp_path, ["kept"])
    assert (tmp_path / "learning/loss/sst.csv").read_text() == "step,loss\n50,2\n100,1\n"
    (tmp_path / "history/kept.csv").write_text("step,train_loss_step,dev_step_accuracy\n50,2,1\n")
    write_plots(predictions().head(0), {"step": TASKS["sst"]}, tmp_path, ["kept"])  # a task may be named like a column
    assert (tmp_path / "learning/score/step.csv").read_text() == "step,score\n50,1\n"


def test_folders_exist_without_labels_and_training(tmp_path):
    draw(tmp_path, predictions().assign(label=np.nan), members=())
    assert {"confusion", "reliability", "scores", "learning"} <= {path.name for path in tmp_path.iterdir()}
