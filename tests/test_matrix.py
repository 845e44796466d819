"""Every pair of choices of different techniques trains for two updates, or is a documented error.

A covering array: settings of all techniques at once that together contain every pair of values.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from bertrio.config import build_tasks, merged, read_yaml
from bertrio.config.loading import validate_params
from bertrio.core.errors import UserError
from bertrio.core.runtime import set_up
from bertrio.data.batches import Rows
from bertrio.data.sources.sample import load_tasks
from bertrio.data.tokens import tokenise
from bertrio.model.encoder import initial_transformer
from bertrio.model.heads import HEADS
from bertrio.model.multitask import build_model
from bertrio.model.tokenizer import build_tokenizer
from bertrio.techniques.schedules import SCHEDULES
from bertrio.techniques.surgery import SURGERIES
from bertrio.techniques.weighting import WEIGHTINGS
from bertrio.training.build import build_trainer

TINY = {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 16}
SMALL = {
    "runtime": {"device": "cpu", "precision": "float32", "threads": 1},
    "data": {"sample": {"train_rows": 48, "dev_rows": 1, "test_rows": 1}},
    "encoder": {"tiny": TINY, "dropout": 0.1, "attention_dropout": 0.1},
    "finetune": {"epochs": 2, "max_steps": 2},
    "optimizer": {"warmup_fraction": 0.0},
}

# Target of the pair task `varied` by loss; its encoding, head and loss vary.
SCORE_LOSSES = ("mse", "pearson", "cosine_mse", "cosine_embedding", "cosent")
TARGETS = {
    **{name: {"target": "ordered", "classes": 6} for name in ("cross_entropy", "dual_objective", "ordinal_log_loss")},
    **{name: {"target": "binary"} for name in ("bce", "siamese_softmax", "multiple_negatives_ranking")},
    **{name: {"target": "score", "range": [0, 5]} for name in SCORE_LOSSES},
}
STEPS = {"until": "steps", "steps": 2, "tasks": ["varied", "qqp", "sst"]}
FACTORS = {
    "schedule": {name: {"schedule": {"name": name, **STEPS}} for name in SCHEDULES},
    "surgery": {name: {"surgery": {"method": name, "log_conflicts": name != "none"}} for name in ("none", *SURGERIES)},
    "weighting": {name: {"weighting": {"method": name}} for name in WEIGHTINGS},
    "regularizer": {
        "none": {},
        "smart-ball": {"smart": {"lambda": 1.0, "projection": "ball", "norm": "2"}},
        "smart-rescale": {"smart": {"lambda": 1.0, "projection": "rescale"}},
        "bregman": {"bregman": {"mu": 1.0, "late_momentum": 0.999}},
        "smart and bregman": {"smart": {"lambda": 1.0}, "bregman": {"mu": 1.0}},
        "r_drop": {"r_drop": {"alpha": 1.0}},
        "penalties": {"penalties": {"l1": 1e-4, "l2": 1e-4}},
    },
    "encoding": {name: {"tasks": {"varied": {"encoding": name}}} for name in ("cross", "bi")},
    "head": {name: {"tasks": {"varied": {"head": name}}} for name in HEADS},
    "loss": {name: {"tasks": {"varied": {"loss": name, **target}}} for name, target in TARGETS.items()},
}
REFUSED = (  # documented errors
    "does not fit encoding",
    "expected a head that gives the raw cosine",
    "head cosine has 1 output",
    "head cosine needs a Score or Binary target",
    "needs schedule.name joint",
)
Setting = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


@pytest.fixture(scope="module")
def base_setup(request, tmp_path_factory):
    """Params, rows, tokenizer and encoder shared by all settings."""
    root = request.config.rootpath
    base = merged(read_yaml(root / "params.yaml"), SMALL)
    del base["tasks"]["sts"]
    base["tasks"]["varied"] = {"kind": "pair", "batch_size": 8, "dropout": 0.1}
    base["sharing"]["tasks"] = ["qqp", "varied"]
    params = validate_params(merged(read_yaml(root / "params.yaml"), SMALL), "params.yaml")
    frames = {task: tables["train"] for task, tables in load_tasks(params.data, build_tasks(params)).tables.items()}
    texts = [text for frame in frames.values() for text in frame.iloc[:, 1].tolist()]
    tokenizer = build_tokenizer(params.encoder, texts, tmp_path_factory.mktemp("tokenizer"))
    encoder = tmp_path_factory.mktemp("encoder")
    set_up(1)
    initial_transformer(params.encoder, len(tokenizer)).save_pretrained(encoder)
    return base, frames | {"varied": frames.pop("sts")}, tokenizer, encoder


def overrides(setting: Setting) -> dict:
    result: dict = {}
    for factor, value in setting.items():
        result = merged(result, FACTORS[factor][value])
    return result


def pairs_of(setting: Setting) -> set[Pair]:
    return set(itertools.combinations(sorted(setting.items()), 2))


def valid_settings(base: dict, *factors: str) -> list[Setting]:
    """Return the valid combinations of some factors; all others must be documented errors."""
    plain = {"schedule": "joint", "surgery": "none", "encoding": "cross", "head": "linear", "loss": "mse"}
    valid = []
    for values in itertools.product(*[FACTORS[factor] for factor in factors]):
        setting = dict(zip(factors, values))
        try:
            validate_params(merged(base, overrides(plain | setting)), "params.yaml")
            valid.append(setting)
        except UserError as error:
            if not any(words in str(error) for words in REFUSED):
                raise AssertionError(setting) from error
    return valid


def covering(groups: list[list[Setting]]) -> list[Setting]:
    """Return settings, with a part from each group, that contain all pairs of values within and between groups.

    Greedy: of 60 random settings with an uncovered pair, take the one that covers most.
    """
    rng, uncovered = random.Random(0), {pair for group in groups for part in group for pair in pairs_of(part)}
    for one, other in itertools.combinations(groups, 2):
        uncovered |= {pair for a, b in itertools.product(one, other) for pair in pairs_of(a | b)}
    settings = []
    while uncovered:
        pair = dict(min(uncovered))
        matching = [[part for part in group if _agrees(part, pair)] for group in groups]
        drawn = [dict(item for group in matching for item in rng.choice(group).items()) for _ in range(60)]
        settings.append(max(drawn, key=lambda setting: len(pairs_of(setting) & uncovered)))
        uncovered -= pairs_of(settings[-1])
    return settings


def _agrees(part: Setting, pair: Setting) -> bool:
    return all(part.get(factor, value) == value for factor, value in pair.items())


def train(setting: Setting, base_setup) -> None:
    """Train for two updates, and check that they are finite and change the expected weights."""
    base, frames, tokenizer, encoder = base_setup
    params = validate_params(merged(base, overrides(setting)), "params.yaml")
    model = build_model(params, encoder, set_up(**params.runtime.model_dump()))
    rows = {}
    for name in params.trains:
        task = build_tasks(params)[name]
        frame = frames[name]
        if name == "varied" and task.target.discrete:
            label = frame["label"] > 2.5 if task.target.label_dtype == "float32" else frame["label"].round()
            frame = frame.assign(label=label.astype(np.float64))
        rows[name] = Rows(frame, task, tokenise(frame, task, tokenizer, params.encoder.max_length))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer, _ = build_trainer(params, model, rows)
    logs = list(trainer.run("matrix"))
    assert logs[-1].step == 2
    assert all(np.isfinite(value) for log in logs for value in log.losses.values())
    after = model.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(before[name], after[name]) for name in after if name.startswith("encoder."))
    trained = {task for log in logs for task in log.losses}
    for name in rows:
        weights = [key for key in after if key.startswith(f"heads.task_{name}.")]
        moved = any(not torch.equal(before[key], after[key]) for key in weights)
        assert moved == (name in trained and bool(weights)), name


def test_every_pair_of_choices_trains_or_is_a_documented_error(base_setup):
    base = base_setup[0]
    linked = [valid_settings(base, "encoding", "head", "loss"), valid_settings(base, "schedule", "surgery")]
    free = [[{factor: value} for value in FACTORS[factor]] for factor in ("weighting", "regularizer")]
    settings = covering(linked + free)
    assert len(linked[1]) == len(SCHEDULES) + len(SURGERIES)  # all schedules without surgery, and joint with each
    assert len(settings) >= 70  # ten losses times seven of another factor
    for setting in settings:
        print(setting)  # shown if it fails
        train(setting, base_setup)
