"""What params say of parts and of torch without importing them, held against the parts and torch themselves."""

import re
from typing import get_args

import pytest
from pydantic import ValidationError

from bertrio.config import TaskParams
from bertrio.config.groups import POOLINGS as POOLING_NAMES
from bertrio.config.root import OF_TORCH, Params
from bertrio.config.tasks import HEAD_OPTIONS, LOSS_OPTIONS, ONE_VECTOR, SCALINGS, TWO_VECTORS, HeadOptions, LossOptions
from bertrio.config.techniques import SCHEDULES as SCHEDULE_NAMES
from bertrio.config.techniques import SURGERIES as SURGERY_NAMES
from bertrio.config.techniques import WEIGHTINGS as WEIGHTING_NAMES
from bertrio.config.techniques import WITHOUT_UNTIL
from bertrio.core.tasks import build_target


def choices(group, name):
    """The values that a param lets through."""
    return set(get_args(group.model_fields[name].annotation))


def test_the_choices_in_params_are_those_that_the_parts_offer():
    from bertrio.model.heads import HEADS, SHARES
    from bertrio.model.pooling import POOLINGS
    from bertrio.techniques.losses import LOSSES
    from bertrio.techniques.regularizers.smart import NORMS
    from bertrio.techniques.schedules import SCHEDULES
    from bertrio.techniques.surgery import SURGERIES
    from bertrio.techniques.weighting import WEIGHTINGS

    of = {name: field.annotation for name, field in Params.model_fields.items()}
    assert set(HEAD_OPTIONS) == set(HEADS)
    assert set(LOSS_OPTIONS) == set(LOSSES)
    assert set(SCHEDULE_NAMES) == set(SCHEDULES) > set(WITHOUT_UNTIL)
    assert set(SURGERY_NAMES) == {"none", *SURGERIES}
    assert set(WEIGHTING_NAMES) == set(WEIGHTINGS)
    assert set(POOLING_NAMES) == set(POOLINGS)
    assert choices(of["smart"], "norm") == set(NORMS)
    assert choices(of["sharing"], "layer") == set(SHARES)


def test_the_ways_to_combine_members_are_those_that_the_ensemble_offers():
    from bertrio.evaluation.ensembling import RULES
    from bertrio.training.soup import SOUPS

    assert choices(Params.model_fields["ensemble"].annotation, "combine") == {*RULES, *SOUPS}


def test_the_options_in_params_are_those_that_heads_and_losses_take():
    from bertrio.model.heads import ACTIVATIONS, HEADS, VECTORS, head_options
    from bertrio.techniques.losses import options_of

    assert {name: set(options) for name, options in HEAD_OPTIONS.items()} == {
        name: head_options(name) for name in HEADS
    }
    assert {name: set(of) for name, of in LOSS_OPTIONS.items()} == {name: options_of(name) for name in LOSS_OPTIONS}
    assert set(HeadOptions.model_fields) == set().union(*HEAD_OPTIONS.values())
    assert set(LossOptions.model_fields) == set().union(*LOSS_OPTIONS.values())
    assert {name for name, count in VECTORS.items() if count == 1} == set(ONE_VECTOR)
    assert {name for name, count in VECTORS.items() if count == 2} == set(TWO_VECTORS)
    activations = get_args(HeadOptions.model_fields["activation"].annotation)[0]
    assert set(get_args(activations)) == set(ACTIVATIONS)


def test_the_scalings_in_params_are_those_of_the_cosine_head():
    from bertrio.model.heads import SCALINGS as OFFERED

    kinds = {"score": type(build_target("score", limits=(0, 5))), "binary": type(build_target("binary"))}
    assert {kinds[name]: set(of) for name, of in SCALINGS.items()} == {kind: set(of) for kind, of in OFFERED.items()}


WAYS = [("single", None), ("pair", "cross"), ("pair", "bi")]
TARGETS = {
    "classes": {"classes": 3},
    "ordered": {"classes": 3},
    "binary": {},
    "score": {"range": [0, 5]},
}


@pytest.mark.parametrize(("kind", "encoding"), WAYS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_head_and_loss_that_params_let_through_can_be_built_and_trained(kind, encoding, target):
    import torch

    from bertrio.model.heads import HeadSpec, build_heads
    from bertrio.techniques.losses import build_loss

    let_through = set()
    for head in HEAD_OPTIONS:
        for loss in LOSS_OPTIONS:
            shape = {"kind": kind, "encoding": encoding, "target": target, **TARGETS[target]}
            try:
                task = TaskParams(**shape, head=head, loss=loss, batch_size=1, dropout=0.0)
            except ValidationError:
                continue
            let_through.add((head, loss))
            of = build_target(task.target, task.classes, task.range)
            spec = HeadSpec(task.head, of, of.outputs_for(task.loss), task.dropout, task.head_options.given())
            vectors = [torch.randn(4, 6, requires_grad=True) for _ in range(2 if encoding == "bi" else 1)]
            output = build_heads({"a": spec}, 6)["a"](*vectors)
            labels = torch.tensor([0, 1, 1, 0]).to(getattr(torch, of.label_dtype))
            result = build_loss(task.loss, of, task.loss_options.given())(output, labels)
            result.backward()
            assert result.isfinite() and vectors[0].grad.isfinite().all()
            assert of.predict(output.outputs.detach().double().numpy()).values.shape == (4,)
    assert {loss for _, loss in let_through} <= set(build_target(target, 3, (0, 5)).losses)
    assert len(let_through) >= 4


def test_words_of_torch_are_known_without_it():
    from torch import nn

    added = {"smart_apply"}  # to all modules, by transformers, while it makes a model
    names = added.union(*(dir(empty) for empty in (nn.ModuleDict(), nn.ParameterDict())))
    assert {name for name in names if re.fullmatch("[a-z][a-z0-9_]*", name)} == OF_TORCH
