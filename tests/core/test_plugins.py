"""Losses, heads, schedules and so on from another package: found, checked, tried out, trained with, written down."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import yaml
from dvc.utils.hydra import apply_overrides
from torch.nn import functional as F

from bertrio.config import load_params, merged, read_yaml
from bertrio.config.choices import plugins_of
from bertrio.core.errors import UserError
from bertrio.core.plugins import GROUPS, choose, find, installed
from bertrio.core.tasks import HeadOutput
from bertrio.data.inputs import check_inputs

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "runtime": {"threads": 1, "device": "cpu"},
    "data": {"sample": {"train_rows": 80, "dev_rows": 20, "test_rows": 20}},
    "encoder": {"tiny": {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}},
    "finetune": {"epochs": 1, "max_steps": 6},
}
MODULE = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from bertrio.model.heads import FeedForward
    from bertrio.core.tasks import HeadOutput

    def focal(output, labels, *, gamma: float = 2.0):
        log_p = F.log_softmax(output.outputs.float(), dim=-1)
        own = log_p.gather(1, labels.long()[:, None]).squeeze(1)
        return (-((1 - own.exp()) ** gamma) * own).mean()

    def of_rows(output, labels):
        return (output.outputs.float() - labels[:, None].float()).abs()

    class Sum(FeedForward):
        @staticmethod
        def features(u, v):
            return u + v

    class Scaled(nn.Module):
        vectors = 1

        def __init__(self, hidden_size, target, size, dropout, by=1.0):
            super().__init__()
            self.linear, self.by = nn.Linear(hidden_size, size), by

        def forward(self, u):
            return HeadOutput(self.by * self.linear(u))

    class Flat(Scaled):
        def forward(self, u):
            return HeadOutput(self.linear(u).sum(dim=1))

    def backwards(sizes, generator, *, passes: int = 1):
        tasks = list(sizes.batches)[::-1]
        epoch = [(task,) for task in tasks for _ in range(passes * sizes.batches[task])]
        return [epoch] * sizes.epochs

    def counted(sizes, generator):
        by = max(sizes.batches.values()) if sizes.until == "longest" else sizes.batches[sizes.until]
        return [[(task,) for task in sizes.batches] * by] * sizes.epochs

    def of_nobody(sizes, generator):
        return [[("nobody",)]]

    def empty(sizes, generator):
        return []

    def last(output, mask):
        return output.last_hidden_state[:, -1]

    def loudest(gramian, generator, *, share: float = 0.5):
        return torch.ones(len(gramian), dtype=gramian.dtype) + share * (gramian.diagonal() == gramian.max())

    class Learned(nn.Module):
        def __init__(self, tasks, start=0.0):
            super().__init__()
            self.weights = nn.ParameterDict({task: nn.Parameter(torch.tensor(start)) for task in tasks})

        def forward(self, task, loss):
            return loss * self.weights[task].exp()
"""
POINTS = {
    "losses": {"focal": "mine_parts:focal", "of_rows": "mine_parts:of_rows"},
    "heads": {"sum": "mine_parts:Sum", "scaled": "mine_parts:Scaled", "flat": "mine_parts:Flat"},
    "schedules": {
        "backwards": "mine_parts:backwards",
        "counted": "mine_parts:counted",
        "of_nobody": "mine_parts:of_nobody",
        "empty": "mine_parts:empty",
    },
    "poolings": {"last": "mine_parts:last"},
    "surgeries": {"loudest": "mine_parts:loudest"},
    "weightings": {"learned": "mine_parts:Learned"},
}


def install(folder, name="mine", version="1.0", points=POINTS, module=MODULE):
    """A distribution as `pip install` leaves it: a module, and a folder of what is known of it."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, own in points.items():
        lines += [f"[bertrio.{group}]", *[f"{key} = {value}" for key, value in own.items()]]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (folder / f"{name}_parts.py").write_text(textwrap.dedent(module))
    return folder


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A package with one part or more of each kind."""
    folder = install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "mine_parts", raising=False)
    yield folder
    sys.modules.pop("mine_parts", None)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes params.yaml into the current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def write(overrides):
        params = merged(merged(read_yaml(ROOT / "params.yaml"), SMALL), overrides)
        (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))

    return write


EVERYTHING = {
    "tasks": {
        "sst": {"loss": "focal", "loss_options": {"gamma": "1e-01"}, "head": "scaled", "head_options": {"by": 2}},
        "sts": {"encoding": "bi", "head": "sum", "head_options": {"depth": 1}},
    },
    "schedule": {"name": "backwards", "options": {"passes": 2}},
    "encoder": {"pooling": "last"},
    "weighting": {"method": "learned", "options": {"start": 0.5}},
}
USED = {
    "tasks.sst.head": "scaled",
    "tasks.sts.head": "sum",
    "tasks.sst.loss": "focal",
    "encoder.pooling": "last",
    "schedule.name": "backwards",
    "weighting.method": "learned",
}


def test_params_know_installed_parts_by_name_and_import_neither_them_nor_torch(mine, project):
    project(EVERYTHING)
    code = (
        "import sys; from bertrio.config import load_params; p = load_params('params.yaml')\n"
        "assert p.tasks['sst'].loss_options.given() == {'gamma': 0.1}, p.tasks['sst']\n"
        "assert not {'torch', 'mine_parts'} & set(sys.modules)"
    )
    path = [str(mine), str(ROOT / "src")]
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path}\n{code}"], check=True)
    assert {param: plugin.name for param, plugin in plugins_of(load_params("params.yaml")).items()} == USED


def test_a_name_that_nobody_offers_is_an_error_that_lists_all_that_do(mine, project):
    project({"tasks": {"sst": {"loss": "focl"}}})
    with pytest.raises(UserError, match=r"tasks\.sst\.loss: expected 'cross_entropy', .*'focal'.*did you mean focal\?"):
        load_params("params.yaml")


def test_without_the_package_its_names_are_unknown(project):
    project({"tasks": {"sst": {"loss": "focal"}}})
    with pytest.raises(UserError, match=r"tasks\.sst\.loss: expected .*found 'focal'"):
        load_params("params.yaml")


@pytest.mark.parametrize("value", ["mine_parts:focal", "/tmp/mine.py", "../mine", "os:system"])
def test_params_name_entry_points_and_never_modules_or_paths(mine, project, value):
    project({"tasks": {"sst": {"loss": value}}})
    with pytest.raises(UserError, match=r"tasks\.sst\.loss: expected "):
        load_params("params.yaml")


def test_a_name_that_two_offer_is_an_error_where_it_is_used(mine, project, tmp_path, monkeypatch):
    points = {"losses": {"bce": "other_parts:focal", "focal": "other_parts:focal"}}
    monkeypatch.syspath_prepend(str(install(tmp_path / "more", "other", "2.0", points)))
    project({"tasks": {"qqp": {"loss": "bce"}}})
    with pytest.raises(
        UserError, match=r"qqp\.loss: bce is a loss of bertrio and of other 2\.0; rename the entry point"
    ):
        load_params("params.yaml")
    with pytest.raises(ValueError, match=r"focal is a loss of mine 1\.0 and of other 2\.0"):
        find("losses", ["bce"], "focal")
    assert find("losses", ["mse"], "mse") is None, "what nobody else offers is not touched"


def test_a_run_with_parts_of_every_kind_trains_and_says_whose_they_were(mine, project, monkeypatch):
    project(EVERYTHING)
    monkeypatch.setenv("BERTRIO_CHECKPOINTS", "checkpoints")
    for name in ("check", "download", "split", "pretrain_mlm", "prefinetune"):
        stage(name)
    stage("finetune", "base")
    stage("ensemble")
    steps = Path("plots/steps/base.csv").read_text().splitlines()
    assert steps[0].startswith("step") and len(steps) > 1
    written = json.loads(Path("data/inputs/plugins.json").read_text())
    assert set(written) == set(USED)
    assert {key: written["tasks.sst.loss"][key] for key in ("distribution", "version", "object")} == {
        "distribution": "mine",
        "version": "1.0",
        "object": "mine_parts:focal",
    }


def test_a_model_says_whose_parts_it_has_and_is_refused_without_them(mine, project, monkeypatch, tmp_path):
    from bertrio.model.about import About, read_about

    project({"tasks": {"sst": {"loss": "focal", "loss_options": {"gamma": 1}}}})
    about = About.of(load_params("params.yaml")).as_json()
    Path("bertrio.json").write_text(json.dumps(about))
    assert about["plugins"]["tasks.sst.loss"]["version"] == "1.0"
    assert read_about(".").tasks["sst"].loss_options.given() == {"gamma": 1}
    (mine / "mine-1.0.dist-info").rename(tmp_path / "gone")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match=r"it has parts of mine 1\.0, which must be installed"):
        read_about(".")


def test_a_checkpoint_of_another_version_is_another_runs(mine, project, monkeypatch):
    from bertrio.config.loading import MEMBER_GROUPS
    from bertrio.core.runtime import set_up
    from bertrio.training.resume import open_checkpoints

    project({"tasks": {"sst": {"loss": "focal"}}, "checkpoints": {"folder": "checkpoints"}})
    params = load_params("params.yaml")

    def folder():
        with open_checkpoints("finetune-base", params, set(MEMBER_GROUPS), [], set_up(1, "cpu")) as checkpoints:
            return checkpoints.folder.name

    first = folder()
    assert folder() == first
    (mine / "mine_parts.py").write_text("def focal(output, labels):\n    return output.outputs.sum()\n")
    assert folder() != first


def stage(name, *args):
    """Runs a stage script's `main` in the current folder."""
    return runpy.run_path(str(ROOT / "stages" / f"{name}.py"))["main"](*args)


def test_gradient_surgery_of_another_package(mine, project):
    import torch

    from bertrio.techniques.surgery import build_surgery

    project({"surgery": {"method": "loudest", "options": {"share": 1}}})
    options = load_params("params.yaml").surgery
    weigh = build_surgery(options.method, "sum", torch.Generator(), options.options.given())
    assert weigh(torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))).tolist() == [1, 2]


def test_another_version_or_a_changed_file_is_noticed(mine, project, tmp_path, monkeypatch):
    project({"tasks": {"sst": {"loss": "focal"}}})

    def facts():
        check_inputs("params.yaml", "data/inputs")
        return json.loads(Path("data/inputs/plugins.json").read_text())["tasks.sst.loss"]

    first = facts()
    assert facts() == first
    with open(mine / "mine_parts.py", "a") as file:
        file.write("# a change\n")
    changed = facts()
    assert changed["version"] == first["version"] and changed["sha256"] != first["sha256"]
    (mine / "mine-1.0.dist-info").rename(tmp_path / "gone")
    monkeypatch.syspath_prepend(str(install(tmp_path / "newer", version="1.1")))
    assert facts()["version"] == "1.1"


def test_without_plugins_nothing_is_said_of_them(tmp_path):
    check_inputs(ROOT / "params.yaml", tmp_path)
    assert json.loads((tmp_path / "plugins.json").read_text()) == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"tasks": {"sst": {"loss": "focal", "loss_options": {"gama": 1}}}},
            r"^tasks\.sst\.loss: loss focal \(of mine 1\.0\): unknown option gama: expected gamma",
        ),
        (
            {"tasks": {"sst": {"loss": "focal", "loss_options": {"gamma": "much"}}}},
            r"tasks\.sst\.loss: loss focal \(of mine 1\.0\): TypeError: ",
        ),
        (
            {"tasks": {"qqp": {"loss": "of_rows"}}},
            r"tasks\.qqp\.loss: loss of_rows \(of mine 1\.0\): gave \[1, 1\], torch\.float32, expected a scalar",
        ),
        (
            {"tasks": {"sst": {"head": "scaled", "head_options": {"bye": 1}}}},
            r"tasks\.sst\.head: head scaled \(of mine 1\.0\): unknown option of head scaled 'bye'; known: by",
        ),
        (
            {"tasks": {"sts": {"head": "sum"}}},
            r"sts\.head: head sum .*: takes 2 vectors a row, and encoding cross gives 1",
        ),
        ({"tasks": {"sst": {"head": "flat"}}}, r"head flat .*: gave outputs of shape \[3\], expected .* \[3, 5\]"),
        (
            {
                "tasks": {
                    name: {"encoding": "bi", "head": head} for name, head in (("qqp", "siamese"), ("sts", "sum"))
                },
                "sharing": {"layer": "fusion"},
            },
            r"tasks\.sts\.head: .*the same widths",
        ),
        ({"schedule": {"name": "empty"}}, r"schedule\.name: schedule empty .*expected \d+ epochs, found none"),
        (
            {"schedule": {"name": "of_nobody"}},
            r"schedule\.name: schedule of_nobody .*has the step \('nobody',\), expected a tuple",
        ),
        ({"schedule": {"name": "backwards", "options": {"pases": 1}}}, r"unknown option pases: expected passes"),
        ({"schedule": {"options": {"passes": 1}}}, r"schedule: options: joint takes none"),
        (
            {"surgery": {"method": "loudest", "options": {"c": 1}}},
            r"surgery\.method: surgery loudest .*unknown option c",
        ),
        (
            {"weighting": {"method": "learned", "options": {"x": 1}}},
            r"weighting\.method: weighting learned .*TypeError",
        ),
        (
            {
                "ensemble": {
                    "members": {"base": {}, "b": {"tasks": {"sst": {"loss": "focal", "loss_options": {"x": 1}}}}}
                }
            },
            r"unknown option x: expected gamma",
        ),
    ],
)
def test_what_is_wrong_with_a_part_is_told_before_any_work(mine, project, overrides, message):
    project(overrides)
    with pytest.raises(UserError, match=message):
        check_inputs("params.yaml", "data/inputs")


def test_a_schedule_is_tried_out_with_the_sizes_that_training_gives_it(mine, project):
    """One task alone is what its epochs are counted by, whatever `until` says for several."""
    project({"schedule": {"name": "counted", "tasks": ["qqp"], "until": "sst"}})
    check_inputs("params.yaml", "data/inputs")


def test_a_head_of_another_package_needs_no_task_that_is_gone(mine, project):
    project({"tasks": {"sst": {"head": "scaled"}}})
    params = yaml.safe_load(Path("params.yaml").read_text())
    del params["tasks"]["sts"]  # sharing.tasks still names it
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    check_inputs("params.yaml", "data/inputs")


def test_a_part_that_can_not_be_imported_names_its_package(project, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "broken", module="import not_there\n", points=BROKEN)))
    project({"tasks": {"sst": {"loss": "focal"}}})
    message = r"loss focal \(of broken 1\.0\): broken_parts:focal can't be imported \(ModuleNotFoundError: .*not_there"
    with pytest.raises(UserError, match=message):
        check_inputs("params.yaml", "data/inputs")


BROKEN = {"losses": {"focal": "broken_parts:focal"}}


def test_the_package_in_the_document_works_as_it_stands(project, tmp_path, monkeypatch):
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    document = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    found = dict(reversed(re.findall(r"^```(\w+)\n(.*?)^```$", document, re.S | re.M)))  # the first of each language
    about = tomllib.loads(found["toml"])["project"]
    points = {group.removeprefix("bertrio."): own for group, own in about["entry-points"].items()}
    folder = install(tmp_path / "site", "my", about["version"], points, found["python"])
    assert (folder / "my_parts.py").exists() and about["name"] == "my-parts"
    monkeypatch.syspath_prepend(str(folder))
    project({})
    [command] = [line for line in document.splitlines() if line.startswith("dvc exp run")]
    apply_overrides(Path("params.yaml"), re.findall(r"-S (\S+)", command))
    check_inputs("params.yaml", "data/inputs")
    assert set(json.loads(Path("data/inputs/plugins.json").read_text())) == {"tasks.sst.loss", "tasks.sst.head"}
    part, _ = choose("losses", {}, "focal")
    output = HeadOutput(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    torch.testing.assert_close(part(output, labels, gamma=0), F.cross_entropy(output.outputs, labels))
    assert part(output, labels) < part(output, labels, gamma=0)


def test_one_file_and_one_line_do_in_bertrio_itself(project, tmp_path):
    document = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    [line] = re.findall(r'^focal_loss = "(bertrio\..*)"$', document, re.M)
    package = re.search(r"^```python\n(.*?)^```$", document, re.S | re.M)[1]
    source = shutil.copytree(ROOT / "src/bertrio", tmp_path / "src/bertrio")
    (source.parent / line.partition(":")[0].replace(".", "/")).with_suffix(".py").write_text(package)
    install(source.parent, "bertrio", points={"losses": {"focal_loss": line}}, module="")
    project({"tasks": {"sst": {"loss": "focal_loss", "loss_options": {"gamma": 1}}}})
    code = f"import sys; sys.path.insert(0, {str(source.parent)!r})\n"
    code += "from bertrio.data.inputs import check_inputs; check_inputs('params.yaml', 'data/inputs')"

    def digest():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(Path("data/inputs/plugins.json").read_text())["tasks.sst.loss"]["sha256"]

    before = digest()
    with open(source / "cli/main.py", "a") as other:
        other.write("# of no account to a loss\n")
    assert digest() == before
    with open(source.parent / "bertrio/techniques/losses/focal.py", "a") as own:
        own.write("# may be of account\n")
    assert digest() != before


def test_every_group_has_its_own_table(mine):
    for group in GROUPS:
        assert set(installed(group)) >= set(POINTS[group])
        name = next(iter(POINTS[group]))
        part, plugin = choose(group, {}, name)
        assert (plugin.distribution, part.__module__) == ("mine", "mine_parts")
    assert choose("losses", {"mse": len}, "mse") == (len, None)
