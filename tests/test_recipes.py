"""The project's recipes: every row resolves and trains, and reports the figures of its paper."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bertrio.cli.main import main
from bertrio.config import Params, member_params, read_yaml
from bertrio.config.loading import validate_params
from bertrio.core.runtime import set_up
from bertrio.data.download import download
from bertrio.data.prepare import split_data
from bertrio.experiments.recipes.claims import claim_document, judge, load_claims
from bertrio.experiments.recipes.comparable import Setting
from bertrio.experiments.recipes.measured import load_measured
from bertrio.experiments.recipes.params import flatten, parse_settings, preset_options, set_param
from bertrio.experiments.recipes.resolving import resolve
from bertrio.experiments.recipes.rows import Row, load_presets, load_recipes
from bertrio.experiments.recipes.table_text import to_markdown, write_tables
from bertrio.experiments.recipes.tables import paper_tables
from bertrio.training.finetune import Inputs, finetune
from bertrio.training.mlm import pretrain_mlm
from bertrio.training.prefinetune import prefinetune
from tests.training.conftest import saved_model

ROOT = Path(__file__).resolve().parent.parent
RECIPES = load_recipes(ROOT / "recipes")
UPDATES = 2
SMALL = {
    "runtime": {"device": "cpu", "precision": "float32", "threads": 1},
    "data.source": "sample",
    # Enough rows for UPDATES batches of any row: the largest batch of a step has 64
    "data.sample": {"train_rows": 72, "dev_rows": 24, "test_rows": 8},
    "encoder.name": "tiny",
    "encoder.tiny": {"vocab_size": 300, "hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 32},
    "mlm.rows": {"imdb": 20, "multinli": 20, "sick": 20},
    "mlm.block_size": 16,
    "distill.weight": 0,  # there is no teacher
    **{f"{stage}.max_steps": UPDATES for stage in ("mlm", "prefinetune", "finetune")},
}


SWEEPS = [sweep for paper in RECIPES.papers.values() for sweep in paper.sweeps.values()]
SWEEP_ROWS = [row for sweep in SWEEPS for row in sweep.rows.values()]


def structure(row: Row) -> str:
    """Return the overrides without their numbers."""
    return str({name: type(value) if type(value) in (int, float) else value for name, value in row.overrides.items()})


# One row for each structure
TO_TRAIN = {structure(row): row for row in reversed([*RECIPES.expand(RECIPES.papers), *SWEEP_ROWS])}.values()


def small(row: Row) -> Params:
    """Return the row's params at a small size."""
    return validate_params(resolve(RECIPES, row, "paper", SMALL), row.name)


@pytest.mark.parametrize("name", ["smoke", "quick", "real", "smart-split", "best"])
def test_preset_options_round_trip(name):
    preset = load_presets(ROOT / "recipes")[name]
    options = list(preset_options(preset.overrides))
    assert not any(set(option) & set(" *?\n\t") for option in options)
    settings = parse_settings(options[1::2])
    assert settings == preset.overrides
    run = resolve(RECIPES, RECIPES.base_row(None), "paper", settings)
    validate_params(run, name)
    if name == "real":
        paths = {param: value for param, value in settings.items() if param.startswith(("data.", "encoder."))}
        assert resolve(RECIPES, RECIPES.row(name), "paper", paths) == run


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory) -> Path:
    """A folder with data, corpora and tokenizer shared by all rows."""
    folder = tmp_path_factory.mktemp("recipes")
    raw = read_yaml(ROOT / "params.yaml")
    for name, value in (SMALL | {"mlm.enabled": True}).items():
        set_param(raw, name, value)
    params = validate_params(raw, "params.yaml")
    download(params, folder / "raw", folder / "rejects", folder / "corpora")
    split_data(params, folder / "raw", folder / "splits", folder / "tokenizer", folder / "data.json")
    return folder


def test_every_row_resolves_under_every_budget():
    presets = load_presets(ROOT / "recipes")
    rows = RECIPES.expand([*RECIPES.papers, *(row.name for row in SWEEP_ROWS)])
    assert len(rows) > 80
    for row in rows:
        full = resolve(RECIPES, row, "paper")
        quick, curves = (resolve(RECIPES, row, budget) for budget in ("quick", "curves"))
        assert quick["finetune"]["epochs"] <= full["finetune"]["epochs"] == curves["finetune"]["epochs"], row.name
        assert quick["data"]["split"]["keep"]["train"] == curves["data"]["split"]["keep"]["train"] < 1, row.name
        assert quick["mlm"] == curves["mlm"], row.name  # the two share this stage in the cache
        assert row.paper != "future" or quick["finetune"]["lr"] == presets["quick"].overrides["finetune.lr"], row.name


@pytest.mark.parametrize("budget", ["quick", "paper"])
def test_rows_with_equal_pretraining_share_its_dvc_cache(budget):
    stage = read_yaml(ROOT / "dvc.yaml")["stages"]["pretrain_mlm"]
    rows = [RECIPES.row(f"bertpp-{name}") for name in ("model-b", "model-g", "model-h", "constant-rate")]
    settings = [resolve(RECIPES, row, budget, seed=2) for row in rows]
    names = tuple(f"{param}." for param in stage["params"])
    read = [{name: value for name, value in flatten(one).items() if f"{name}.".startswith(names)} for one in settings]
    assert read[0]["mlm.enabled"] and all(params == read[0] for params in read)
    assert settings[0]["optimizer"] != settings[1]["optimizer"]


def test_bertpp_extensions_match_the_params_of_its_rows():
    def extensions(row: Row):
        params = resolve(RECIPES, row)
        yield from ["AdjLayers"] * (params["tasks"]["sst"]["head"] == "mlp")
        yield from ["AddPretrain"] * params["mlm"]["enabled"]
        yield from ["MulFinetune"] * (params["schedule"]["name"] == "joint" and params["schedule"]["tasks"] is None)
        yield from ["GradSurg"] * (params["surgery"]["method"] == "pcgrad")
        yield from ["CosSim"] * (params["tasks"]["qqp"]["head"] == params["tasks"]["sts"]["head"] == "cosine")
        yield from ["HyperTune"] * (params["optimizer"]["lr_schedule"] == "step")
        yield from ["CycTrain"] * (params["schedule"]["name"] == "joint" and params["schedule"]["cycle"])

    for name, row in RECIPES.paper("bertpp").tables["table2"].rows.items():
        assert name == "baseline" or list(row.extensions) == list(extensions(row)), name


@pytest.mark.parametrize(("row", "folder"), [("best", "best"), ("best-ensemble", "best/ensemble")])
def test_stored_params_of_best_rows_are_current(row, folder):
    path = ROOT / "docs" / folder / "params.yaml"
    stored = read_yaml(path)
    overrides = {f"data.{name}": stored["data"][name] for name in ("source", "path", "extra_train")}
    overrides["encoder.name"] = stored["encoder"]["name"]
    resolved = resolve(RECIPES, RECIPES.row(row), overrides=overrides, seed=1)
    assert validate_params(stored, str(path)) == validate_params(resolved, row)
    assert flatten(stored).keys() == flatten(resolved).keys(), "DVC needs every param that dvc.yaml tracks"


@pytest.mark.parametrize("row", TO_TRAIN, ids=lambda row: row.name)
def test_every_row_trains_for_two_updates(row, data_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = small(row)
    runtime = partial(set_up, **params.runtime.model_dump())
    data = Inputs(str(data_folder / "splits"), str(data_folder / "tokenizer"))
    pretrain_mlm(params, runtime(), str(data_folder / "corpora"), data.tokenizer, "models/encoder")
    prefinetune(params, "models/encoder", data.splits, data.tokenizer, "models/prefinetuned")
    for name in params.ensemble.members:
        member = member_params(params, name)
        plots = [f"{name}/{file}.csv" for file in ("history", "conflicts", "steps")]
        timing = finetune(member, set_up(**member.runtime.model_dump()), data, f"models/{name}", name, *plots)
        history = pd.read_csv(f"{name}/history.csv").filter(like="train_loss_")
        assert timing["steps"] == UPDATES
        assert history.notna().any(axis=None)
        assert np.isfinite(history.stack()).all()
        models = [saved_model(member, folder) for folder in ("models/prefinetuned", f"models/{name}")]
        before, after = (model.state_dict() for model in models)
        assert all(value.isfinite().all() for value in after.values())
        changed = {key.partition(".")[0] for key in after if not torch.equal(before[key], after[key])}
        assert changed >= ({"heads"} if member.encoder.frozen else {"encoder"}), changed


def test_reported_figures_equal_a_second_transcription():
    transcribed = pd.read_csv(ROOT / "tests/reported.csv", dtype=str).set_index(["paper", "row", "split"])
    assert transcribed.index.is_unique
    reported = {
        (row.paper, row.name.removeprefix(f"{row.paper}-"), split): figures
        for paper in RECIPES.papers.values()
        for row in (() if paper.own else paper.rows)
        for split, figures in (("dev", row.reported), ("test", row.reported_test))
        if figures or (split == "dev" and not row.reported_test)  # a row without figures has an empty line
    }
    assert reported == {key: figures.dropna().astype(float).to_dict() for key, figures in transcribed.iterrows()}


@pytest.mark.parametrize("paper", [paper.name for paper in RECIPES.papers.values() if not paper.own])
def test_tables_in_docs_are_current(paper, tmp_path):
    tables = paper_tables(RECIPES, load_measured(ROOT / "recipes/measured"), paper, Setting())
    page, _ = write_tables(tables, tmp_path)
    committed = ROOT / "docs/papers" / page.name
    assert committed.read_text() == page.read_text(), f"bertrio table {paper} --out docs/papers"


def test_claims_in_docs_are_current():
    claims = load_claims(ROOT / "recipes/claims.yaml")
    judged = judge(RECIPES, load_measured(ROOT / "recipes/measured"), claims, Setting())
    document = to_markdown(list(claim_document(judged)))
    assert (ROOT / "docs/papers/claims.md").read_text() == document, "bertrio claims --out docs/papers/claims.md"
    counts = Counter(claim.verdict for claim in judged.claims)
    verdicts = f"{counts['held']} are held, {counts['refuted']} refuted and {counts['inconclusive']} inconclusive"
    assert f"Of {len(judged.claims)} claims {verdicts}" in (ROOT / "docs/results.md").read_text()


def test_overrides_name_source_and_encoder_too(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(["table", "ours", "-S", "data.source=cs224n", "-S", "encoder.name=models/none"]) == 2
    assert "there are no runs --source cs224n --encoder models/none" in capsys.readouterr().err
