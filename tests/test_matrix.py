"""Every pair of choices of different techniques trains for two updates, or is refused in words.

A covering array: a greedy search for settings of all techniques at once, such that every two values meet in at least
one of them. What can't be combined is known from the params' own checks, and each such pair must be refused by them.
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
from bertrio.model.encoder import initial_transformer
from bertrio.model.multitask import build_model
from bertrio.model.tokenizer import build_tokenizer
from bertrio.training.build import build_trainer

SMALL = {
    "runtime": {"device": "cpu", "precision": "float32", "threads": 1},
    "data": {"sample": {"train_rows": 48, "dev_rows": 1, "test_rows": 1}},
    "encoder": {
        "tiny": {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 16},
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "finetune": {"epochs": 2, "max_steps": 2},
    "optimizer": {"warmup_fraction": 0.0},
}

# The task that choices of encoding, head and loss are tried on: pairs, with labels as the loss needs them.
TARGETS = {
    **{name: {"target": "ordered", "classes": 6} for name in ("cross_entropy", "dual_objective", "ordinal_log_loss")},
    **{name: {"target": "binary"} for name in ("bce", "siamese_softmax")},
    **{
        name: {"target": "score", "range": [0, 5]}
        for name in ("mse", "pearson", "cosine_mse", "cosine_embedding", "cosent")
    },
}
FACTORS = {
    "schedule": {
        name: {"schedule": {"name": name, "until": "steps", "steps": 2, "tasks": ["tried", "qqp", "sst"]}}
        for name in ("joint", "sequential", "per_epoch", "round_robin", "annealed", "temperature")
    },
    "surgery": {
        name: {"surgery": {"method": name, "log_conflicts": name != "none"}}
        for name in ("none", "pcgrad", "mgda", "upgrad", "imtl_g", "aligned_mtl", "cagrad")
    },
    "weighting": {name: {"weighting": {"method": name}} for name in ("fixed", "uncertainty")},
    "regularizer": {
        "none": {},
        "smart-ball": {"smart": {"lambda": 1.0, "projection": "ball", "norm": "2"}},
        "smart-rescale": {"smart": {"lambda": 1.0, "projection": "rescale"}},
        "bregman": {"bregman": {"mu": 1.0, "late_momentum": 0.999}},
        "smart and bregman": {"smart": {"lambda": 1.0}, "bregman": {"mu": 1.0}},
        "r_drop": {"r_drop": {"alpha": 1.0}},
        "penalties": {"penalties": {"l1": 1e-4, "l2": 1e-4}},
    },
    "encoding": {name: {"tasks": {"tried": {"encoding": name}}} for name in ("cross", "bi")},
    "head": {
        name: {"tasks": {"tried": {"head": name}}}
        for name in ("linear", "mlp", "concat", "siamese", "siamese_product", "siamese_cosine", "cosine")
    },
    "loss": {name: {"tasks": {"tried": {"loss": name, **target}}} for name, target in TARGETS.items()},
}
REFUSED = (  # the documented words for what can't be
    "does not fit encoding",
    "expected a head that gives the raw cosine",
    "head cosine has 1 output",
    "head cosine needs a Score or Binary target",
    "needs schedule.name joint",
)
Setting = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


@pytest.fixture(scope="module")
def ground(request, tmp_path_factory):
    """Params, rows and encoder that all settings share."""
    root = request.config.rootpath
    base = merged(read_yaml(root / "params.yaml"), SMALL)
    del base["tasks"]["sts"]
    base["tasks"]["tried"] = {"kind": "pair", "batch_size": 8, "dropout": 0.1}
    base["sharing"]["tasks"] = ["qqp", "tried"]
    given = validate_params(merged(read_yaml(root / "params.yaml"), SMALL), "params.yaml")
    frames = {task: of["train"] for task, of in load_tasks(given.data, build_tasks(given)).tables.items()}
    texts = [text for frame in frames.values() for text in frame.iloc[:, 1].tolist()]
    tokenizer = build_tokenizer(given.encoder, texts, tmp_path_factory.mktemp("tokenizer"))
    encoder = tmp_path_factory.mktemp("encoder")
    set_up(1)
    initial_transformer(given.encoder, len(tokenizer)).save_pretrained(encoder)
    return base, frames | {"tried": frames.pop("sts")}, tokenizer, encoder


def overrides(setting: Setting) -> dict:
    result: dict = {}
    for factor, value in setting.items():
        result = merged(result, FACTORS[factor][value])
    return result


def problem(base: dict, setting: Setting) -> str | None:
    """Why params refuse a setting; None if they take it."""
    try:
        validate_params(merged(base, overrides(setting)), "params.yaml")
    except UserError as error:
        return str(error)
    return None


def pairs_of(setting: Setting) -> set[Pair]:
    return set(itertools.combinations(sorted(setting.items()), 2))


def completed(base: dict, pair: Pair, waiting: set[Pair], rng: random.Random) -> Setting | None:
    """A setting with `pair` that params take and that has many other waiting pairs; None if there is none.

    Encoding, head and loss are what can be at odds, so all of their combinations are gone through; the other factors
    take, one after the other, the value that meets most of what still waits.
    """
    best, most = None, -1
    tied = [factor for factor in ("encoding", "head", "loss") if factor not in dict(pair)]
    options = list(itertools.product(*[FACTORS[factor] for factor in tied]))
    rng.shuffle(options)
    for values in options:
        setting = dict(pair) | dict(zip(tied, values))
        others = [factor for factor in FACTORS if factor not in setting]
        for factor in rng.sample(others, len(others)):
            setting[factor] = max(FACTORS[factor], key=lambda v: len(pairs_of(setting | {factor: v}) & waiting))
        for change in ({}, {"schedule": "joint"}, {"surgery": "none"}):  # the one other pair that can be at odds
            tried = setting | change | dict(pair)
            gain = len(pairs_of(tried) & waiting)
            if gain > most and problem(base, tried) is None:
                best, most = tried, gain
    return best


def covering(base: dict) -> tuple[list[Setting], list[Pair]]:
    """Settings in which all pairs of values meet, and the pairs for which there is no such setting."""
    rng = random.Random(0)
    waiting = {
        tuple(sorted(((f, v), (g, w))))
        for f, g in itertools.combinations(FACTORS, 2)
        for v in FACTORS[f]
        for w in FACTORS[g]
    }
    settings, impossible = [], []
    while waiting:
        pair = min(waiting)
        setting = completed(base, pair, waiting, rng)
        if setting is None:
            impossible.append(pair)
            waiting.remove(pair)
        else:
            settings.append(setting)
            waiting -= pairs_of(setting)
    return settings, impossible


def refusals(base: dict, pair: Setting) -> list[str | None]:
    """What params say of the pair with every value of whatever else could be at odds with it."""
    plain = {factor: next(iter(FACTORS[factor])) for factor in ("weighting", "regularizer", "schedule", "surgery")}
    free = [factor for factor in ("encoding", "head", "loss") if factor not in pair]
    combinations = itertools.product(*[FACTORS[factor] for factor in free])
    return [problem(base, plain | dict(zip(free, values)) | pair) for values in combinations]


def train(setting: Setting, ground) -> None:
    """Two updates; checks that they are finite and move what they should."""
    base, frames, tokenizer, encoder = ground
    params = validate_params(merged(base, overrides(setting)), "params.yaml")
    model = build_model(params, encoder, set_up(**params.runtime.model_dump()))
    rows = {}
    for name in params.trains:
        task = build_tasks(params)[name]
        frame = frames[name]
        if name == "tried" and task.target.discrete:
            label = (
                frame["label"].round() if setting["loss"] not in ("bce", "siamese_softmax") else frame["label"] > 2.5
            )
            frame = frame.assign(label=label.astype(np.float64))
        rows[name] = Rows(frame, task, tokenizer, params.encoder.max_length)
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


def test_every_pair_of_choices_trains_or_is_refused_in_words(ground):
    base = ground[0]
    settings, impossible = covering(base)
    assert len(settings) >= 70  # ten losses times seven of another factor
    for pair in impossible:
        assert {factor for factor, _ in pair} <= {"encoding", "head", "loss"} or dict(pair).keys() == {
            "schedule",
            "surgery",
        }, pair
        for message in refusals(base, dict(pair)):
            assert message is not None and any(words in message for words in REFUSED), (pair, message)
    for setting in settings:
        print(setting)  # shown if it fails
        train(setting, ground)
