from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from bertrio.model.multitask import TokenBlock
from bertrio.techniques.weighting import Fixed, Uncertainty
from bertrio.training.build import build_losses, build_regularizers, build_streams
from bertrio.training.objective import Objective
from tests.training.conftest import STILL, TASKS

NOISY = {"encoder": {"dropout": 0.2, "attention_dropout": 0.2}, "tasks": {name: {"dropout": 0.3} for name in TASKS}}
COSINE = {"encoding": "bi", "head": "cosine", "head_options": {"projection": True}}
BI = {"qqp": {"encoding": "bi", "head": "siamese"}, "sts": COSINE}


def setting(workspace, encoding="cross", noisy=True, **overrides):
    """Return params, model in training mode, batch streams and losses, always from the same random state."""
    kinds = {"tasks": BI} if encoding == "bi" else {}
    params, model, train = workspace.built(NOISY if noisy else STILL, kinds, overrides)
    return params, model.train(), build_streams(train, params), build_losses(train, params)


def objective_of(params, model, losses, weighting=None):
    return Objective(model, losses, weighting or Fixed({}), build_regularizers(params, model, 10))


def record_passes(model):
    """Record the arguments of each pass of the encoder from now on."""
    passes = []
    model.encoder.transformer.register_forward_pre_hook(lambda *args: passes.append(args[2]), with_kwargs=True)
    return passes


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "together"])
@pytest.mark.parametrize("encoding", ["cross", "bi"])
@pytest.mark.parametrize("projection", ["ball", "rescale"])
def test_clean_and_noisy_pass_share_dropout_masks(workspace, alone, encoding, projection):
    """Without noise SMART and Bregman are exactly zero despite dropout."""
    still = {"lambda": 5, "sigma": 1e-30, "eta": 0, "projection": projection}
    params, model, streams, losses = setting(workspace, encoding, smart=still, bregman={"mu": 1}, r_drop={"alpha": 1})
    objective, batches = objective_of(params, model, losses), [next(streams[task]) for task in streams]
    for parts in [objective(batch)[0] for batch in batches] if alone else objective(*batches):
        assert parts.penalties["smart"].item() == parts.penalties["bregman"].item() == 0.0
        assert parts.penalties["r_drop"] > 0
    with torch.no_grad():
        for parameter in objective.regularizers["bregman"].teacher.module.heads["sst"].parameters():
            parameter.normal_()
    assert objective(batches[0])[0].penalties["bregman"] > 0, "the teacher has its own head"


@pytest.mark.parametrize("encoding", ["cross", "bi"])
def test_extra_passes_do_not_change_the_random_state(workspace, encoding):
    def losses_of(**techniques):
        params, model, streams, losses = setting(workspace, encoding, **techniques)
        objective = objective_of(params, model, losses)
        logged = [objective(next(streams["qqp"]))[0].loss.item() for _ in range(3)]
        return logged, model.runtime.random_state()

    plain, plain_state = losses_of()
    assert len(set(plain)) == 3
    regularized, state = losses_of(smart={"lambda": 5}, bregman={"mu": 1})
    assert regularized == plain and torch.equal(state, plain_state)


def test_bi_encoded_pairs_equal_their_texts_encoded_alone(workspace):
    _, model, streams, _ = setting(workspace, "bi", noisy=False)
    inputs, encoder = next(streams["qqp"]).inputs, model.encoder
    pooled = [encoder.pooling(encoder.transformer(**tokens), tokens["attention_mask"]) for tokens in inputs]
    expected = model.heads["qqp"](*pooled).outputs
    torch.testing.assert_close(model("qqp", inputs).outputs, expected, rtol=1e-4, atol=1e-5)


def test_the_encoder_gets_word_embeddings_and_adds_positions_once(workspace):
    params, model, streams, losses = setting(workspace, "bi", smart={"lambda": 5, "sigma": 1e-30, "eta": 0})
    embeddings, passes, positions = model.encoder.transformer.embeddings, record_passes(model), []
    embeddings.position_embeddings.register_forward_hook(lambda *args: positions.append(args))
    batch = next(streams["qqp"])
    objective_of(params, model, losses)(batch)
    ids = TokenBlock.from_batches([("qqp", batch.inputs)]).tokens["input_ids"]
    for kwargs in passes:
        assert "input_ids" not in kwargs
        assert torch.equal(kwargs["inputs_embeds"], embeddings.word_embeddings.weight[ids])
    assert len(passes) == len(positions) == 3, "a clean pass, one that finds the noise, and one with it"


@pytest.mark.parametrize("weighting", ["fixed", "uncertainty"])
def test_total_is_the_weighted_sum_of_loss_and_penalties(workspace, weighting):
    smart = {"lambda": 3, "sigma": 0.1, "radius": 0.1}
    params, model, streams, losses = setting(workspace, smart=smart, bregman={"mu": 0.7}, r_drop={"alpha": 0.25})
    regularizers = build_regularizers(params, model, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    if weighting == "fixed":
        weigh, by_hand = Fixed({"sts": 0.3}), lambda total: 0.3 * total
    else:
        weigh, by_hand = Uncertainty(["sst", "qqp", "sts"]), lambda total: total * 2.0 + -0.6931471805599453
        torch.nn.init.constant_(weigh.log_variances["sts"], -0.6931471805599453)  # exp(-w) = 2
    (parts,) = Objective(model, losses, weigh, regularizers)(next(streams["sts"]))
    penalties = {name: value.item() for name, value in parts.penalties.items()}
    assert all(value > 1e-6 for value in penalties.values()) and list(penalties) == ["smart", "bregman", "r_drop"]
    total = parts.loss.item() + 3 * penalties["smart"] + 0.7 * penalties["bregman"] + 0.25 * penalties["r_drop"]
    assert parts.total.item() == pytest.approx(by_hand(total), rel=1e-5)


def test_batches_without_labels_do_not_train_log_variances(workspace):
    _, model, streams, losses = setting(workspace)
    weighting = Uncertainty(["sst", "qqp", "sts"])
    (parts,) = Objective(model, losses, weighting)(replace(next(streams["sst"]), labels=None))
    parts.total.backward()
    assert parts.total.item() == 0 and weighting.log_variances["sst"].grad is None


def test_other_tasks_get_no_penalty_and_no_second_pass(workspace):
    on = {"smart": {"lambda": 5}, "bregman": {"mu": 1}, "r_drop": {"alpha": 1}}
    qqp = {name: {**options, "tasks": ["qqp"]} for name, options in on.items()}
    params, model, streams, losses = setting(workspace, **qqp)
    objective, passes = objective_of(params, model, losses), record_passes(model)
    (parts,) = objective(next(streams["sst"]))
    assert parts.penalties == {} and parts.total.item() == parts.loss.item() and len(passes) == 1
    assert list(objective(next(streams["qqp"]))[0].penalties) == list(on)


def test_smart_of_tasks_that_share_a_pass_by_hand(workspace):
    params, model, streams, losses = setting(workspace, noisy=False, smart={"lambda": 1, "sigma": 0.1, "radius": 0.1})
    objective, passes = objective_of(params, model, losses), record_passes(model)
    batches = [next(streams[task]) for task in ("sst", "qqp", "sts")]
    penalties = [parts.penalties["smart"].item() for parts in objective(*batches)]
    block = TokenBlock.from_batches([(batch.task, batch.inputs) for batch in batches])
    outputs = [model.from_embeddings(kwargs["inputs_embeds"], block) for kwargs in (passes[0], passes[2])]
    (sst, qqp, sts), (sst_noisy, qqp_noisy, sts_noisy) = ([head.outputs.double() for head in x] for x in outputs)
    p, q = sst.softmax(-1), sst_noisy.softmax(-1)
    by_hand = [((p - q) * (p.log() - q.log())).sum(-1).mean()]
    by_hand += [((qqp.sigmoid() - qqp_noisy.sigmoid()) * (qqp - qqp_noisy)).mean(), (sts - sts_noisy).square().mean()]
    assert penalties == pytest.approx([value.item() for value in by_hand], rel=1e-3)


def test_smart_every_third_step_counts_the_steps_of_each_task(workspace):
    """In a round robin of three tasks, every third step of all would be one task's. No noise is drawn in between."""
    params, model, streams, losses = setting(workspace, smart={"lambda": 5, "every": 3})
    objective = objective_of(params, model, losses)
    on, states = {"sst": [], "qqp": [], "sts": []}, []
    for _ in range(7):
        for task in on:
            objective.begin([task])
            on[task].append("smart" in objective(next(streams[task]))[0].penalties)
            states.append(objective.regularizers["smart"].generator.get_state())
    assert all(turns == [True, False, False, True, False, False, True] for turns in on.values())
    drawn = [not a.equal(b) for a, b in pairwise(states)]
    assert drawn[2:9] == [False] * 6 + [True]
