import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence

from bertrio.config import merged
from bertrio.core.runtime import set_up
from bertrio.model.multitask import Block, build_model
from bertrio.model.pooling import POOLINGS
from bertrio.techniques.regularizers.bregman import Bregman
from bertrio.techniques.weighting import Fixed, Uncertainty
from bertrio.training.data import build_losses, build_streams, load_split
from bertrio.training.objective import Objective, bregman_term, distill_term, r_drop_term, smart_term

NOISY = {
    "encoder": {"dropout": 0.2, "attention_dropout": 0.2},
    "tasks": {name: {"dropout": 0.3} for name in ("sst", "qqp", "sts")},
}
BI = {
    "qqp": {"encoding": "bi", "head": "siamese"},
    "sts": {"encoding": "bi", "head": "cosine", "head_options": {"projection": True}},
}
CASES = [  # task, encoding: all three targets, and every way in which texts are encoded
    ("sst", "cross"),
    ("qqp", "cross"),
    ("sts", "cross"),
    ("qqp", "bi"),
    ("sts", "bi"),
]


def setting(workspace, encoding="cross", noisy=True, **overrides):
    """Params, model in training, and batch streams, always from the same random state."""
    still = {"tasks": {name: {"dropout": 0.0} for name in ("sst", "qqp", "sts")}}
    base = merged(NOISY if noisy else still, {"tasks": BI} if encoding == "bi" else {})
    params = workspace.params(**base, **overrides)
    runtime = set_up(**params.runtime.model_dump())
    model = build_model(params, "models/encoder", runtime).train()
    train = load_split(params, "train", "data/splits", "models/tokenizer")
    return params, model, build_streams(train, params), build_losses(train, params)


def teacher_of(params, model, total=10):
    return Bregman(model, params.bregman.momentum, params.bregman.late_momentum, total)


@pytest.mark.parametrize(("task", "encoding"), CASES)
def test_smart_without_noise_is_exactly_zero_with_dropout_on(workspace, task, encoding):
    for projection in ("ball", "rescale"):
        still = {"lambda": 5, "sigma": 0, "eta": 0, "projection": projection}
        params, model, streams, losses = setting(workspace, encoding, smart=still, r_drop={"alpha": 1})
        terms = {"smart": smart_term(params), "r_drop": r_drop_term(params)}
        (parts,) = Objective(model, losses, terms=terms)(next(streams[task]))
        assert parts.penalties["smart"].item() == 0.0
        assert parts.penalties["r_drop"].item() > 0, "dropout is on"


@pytest.mark.parametrize(("task", "encoding"), CASES)
def test_smart_with_noise_is_above_zero_and_small_beside_dropout(workspace, task, encoding):
    params, model, streams, losses = setting(workspace, encoding, smart={"lambda": 5}, r_drop={"alpha": 1})
    terms = {"smart": smart_term(params), "r_drop": r_drop_term(params)}
    (parts,) = Objective(model, losses, terms=terms)(next(streams[task]))
    assert 0 < parts.penalties["smart"] < 1e-4 * parts.penalties["r_drop"]


@pytest.mark.parametrize(("task", "encoding"), CASES)
def test_bregman_of_a_teacher_equal_to_the_model_is_exactly_zero_with_dropout_on(workspace, task, encoding):
    params, model, streams, losses = setting(workspace, encoding, bregman={"mu": 1})
    teacher = teacher_of(params, model)
    objective = Objective(model, losses, terms={"bregman": bregman_term(params, teacher)})
    batch = next(streams[task])
    assert objective(batch)[0].penalties["bregman"].item() == 0.0
    with torch.no_grad():
        for parameter in teacher.teacher.model.heads[task].parameters():
            parameter.normal_()
    assert objective(batch)[0].penalties["bregman"] > 0, "the teacher's own head is what it is compared with"


@pytest.mark.parametrize(("task", "encoding"), CASES)
def test_r_drop_is_exactly_zero_without_dropout(workspace, task, encoding):
    params, model, streams, losses = setting(workspace, encoding, r_drop={"alpha": 1})
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for layer in model.encoder.transformer.encoder.layer:
        layer.attention.self.dropout.p = 0.0
    (parts,) = Objective(model, losses, terms={"r_drop": r_drop_term(params)})(next(streams[task]))
    assert parts.penalties["r_drop"].item() == 0.0


def test_two_dropout_masks_differ_between_the_passes_of_r_drop_and_it_has_a_gradient(workspace):
    params, model, streams, losses = setting(workspace, r_drop={"alpha": 2})
    (parts,) = Objective(model, losses, terms={"r_drop": r_drop_term(params)})(next(streams["sst"]))
    parts.penalties["r_drop"].backward()
    assert model.heads["sst"].output.weight.grad.abs().max() > 0
    assert parts.total.item() == pytest.approx(parts.loss.item() + 2 * parts.penalties["r_drop"].item(), rel=1e-6)


@pytest.mark.parametrize(("task", "encoding"), CASES)
def test_replays_leave_the_random_state_and_the_losses_that_follow_as_without_them(workspace, task, encoding):
    def losses_of(**techniques):
        params, model, streams, losses = setting(workspace, encoding, **techniques)
        terms = {}
        if "smart" in techniques:
            terms["smart"] = smart_term(params)
        if "bregman" in techniques:
            terms["bregman"] = bregman_term(params, teacher_of(params, model))
        objective = Objective(model, losses, terms=terms)
        told = [objective(next(streams[task]))[0].loss.item() for _ in range(3)]
        return told, model.runtime.random_state()

    plain, plain_state = losses_of()
    assert len(set(plain)) == 3
    for on in ({"smart": {"lambda": 5}}, {"bregman": {"mu": 1}}, {"smart": {"lambda": 5}, "bregman": {"mu": 1}}):
        found, state = losses_of(**on)
        assert found == plain
        assert torch.equal(state, plain_state)


@pytest.mark.parametrize(("task", "encoding"), CASES)
def test_outputs_from_word_embeddings_equal_those_from_token_ids_to_the_bit(workspace, task, encoding):
    _, model, streams, _ = setting(workspace, encoding)
    model.eval()
    encoder, inputs = model.encoder, next(streams[task]).inputs
    block = Block.of([(task, inputs)])
    for pooling in ("cls", "mean", "pooler"):
        encoder.pooling = POOLINGS[pooling]
        with torch.no_grad():
            from_ids = encoder.pooling(encoder.transformer(**block.tokens), block.tokens["attention_mask"])
            expected = model.heads[task](*from_ids.chunk(len(inputs))).outputs
            (found,) = model.from_embeddings(model.embed(block.tokens), block)
            assert torch.equal(found.outputs, expected)
            assert torch.equal(model(task, inputs).outputs, expected)
            apart = [encoder.pooling(encoder.transformer(**of), of["attention_mask"]) for of in inputs]
            torch.testing.assert_close(model.heads[task](*apart).outputs, expected, rtol=1e-4, atol=1e-5)
    assert len(inputs) == (2 if encoding == "bi" else 1)


def test_the_encoder_is_given_word_embeddings_to_which_positions_and_types_come_once(workspace):
    params, model, streams, losses = setting(workspace, "bi", smart={"lambda": 5, "sigma": 0, "eta": 0})
    transformer, given = model.encoder.transformer, []
    transformer.register_forward_pre_hook(lambda _, __, kwargs: given.append(kwargs), with_kwargs=True)
    positions = []
    transformer.embeddings.position_embeddings.register_forward_hook(lambda *of: positions.append(of))
    batch = next(streams["qqp"])
    Objective(model, losses, terms={"smart": smart_term(params)})(batch)
    words = transformer.embeddings.word_embeddings.weight
    ids = Block.of([("qqp", batch.inputs)]).tokens["input_ids"]
    for kwargs in given:
        assert "input_ids" not in kwargs
        assert torch.equal(kwargs["inputs_embeds"], words[ids])
    assert len(given) == 3, "a clean pass, one that finds the noise, and one with it"
    assert len(positions) == len(given)


def test_noise_finds_the_padding_and_leaves_it(workspace):
    params, model, streams, losses = setting(
        workspace, smart={"lambda": 5, "sigma": 1.0, "radius": 1.0, "projection": "ball"}
    )
    given = []
    model.encoder.transformer.register_forward_pre_hook(
        lambda _, __, kwargs: given.append(kwargs["inputs_embeds"].detach()), with_kwargs=True
    )
    batch = next(streams["sts"])
    while batch.inputs[0]["attention_mask"].all():
        batch = next(streams["sts"])
    Objective(model, losses, terms={"smart": smart_term(params)})(batch)
    real = batch.inputs[0]["attention_mask"].bool()
    clean, *others = given
    for noisy in others:
        assert ((noisy - clean)[real] != 0).all()
        assert torch.equal(noisy[~real], clean[~real])


@pytest.mark.parametrize("weighting", ["fixed", "uncertainty"])
def test_the_total_is_the_weighted_sum_of_loss_and_penalties_by_hand(workspace, weighting):
    params, model, streams, losses = setting(
        workspace,
        smart={"lambda": 3, "sigma": 0.1, "radius": 0.1},
        bregman={"mu": 0.7},
        r_drop={"alpha": 0.25},
    )
    teacher = teacher_of(params, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    terms = {"smart": smart_term(params), "bregman": bregman_term(params, teacher), "r_drop": r_drop_term(params)}
    if weighting == "fixed":
        weigh, by_hand = Fixed({"sts": 0.3}), lambda total: 0.3 * total
    else:
        weigh, by_hand = Uncertainty(["sst", "qqp", "sts"]), lambda total: total * 2.0 + -0.6931471805599453
        torch.nn.init.constant_(weigh.log_variances["sts"], -0.6931471805599453)  # exp(-w) = 2
    (parts,) = Objective(model, losses, weigh, terms)(next(streams["sts"]))
    found = {name: value.item() for name, value in parts.penalties.items()}
    assert all(value > 1e-6 for value in found.values()) and list(found) == ["smart", "bregman", "r_drop"]
    total = parts.loss.item() + 3 * found["smart"] + 0.7 * found["bregman"] + 0.25 * found["r_drop"]
    assert parts.total.item() == pytest.approx(by_hand(total), rel=1e-5)


@pytest.mark.parametrize("technique", ["smart", "bregman", "r_drop"])
def test_a_task_that_is_not_named_gets_no_penalty_and_no_second_pass(workspace, technique):
    strength = {"smart": {"lambda": 5}, "bregman": {"mu": 1}, "r_drop": {"alpha": 1}}[technique]
    params, model, streams, losses = setting(workspace, **{technique: {**strength, "tasks": ["qqp"]}})
    term = {
        "smart": lambda: smart_term(params),
        "bregman": lambda: bregman_term(params, teacher_of(params, model)),
        "r_drop": lambda: r_drop_term(params),
    }[technique]()
    objective = Objective(model, losses, terms={technique: term})
    passes = []
    model.encoder.transformer.register_forward_hook(lambda *_: passes.append(1))
    (parts,) = objective(next(streams["sst"]))
    assert parts.penalties == {} and parts.total.item() == parts.loss.item() and len(passes) == 1
    assert list(objective(next(streams["qqp"]))[0].penalties) == [technique]


def test_without_a_list_the_penalties_are_for_the_tasks_that_train(workspace):
    params, *_ = setting(workspace, smart={"lambda": 5}, r_drop={"alpha": 1}, schedule={"tasks": ["sts"]})
    assert smart_term(params).tasks == r_drop_term(params).tasks == {"sts"}


def test_what_is_switched_off_has_no_term(workspace):
    params, *_ = setting(workspace)
    assert smart_term(params) is None and r_drop_term(params) is None and bregman_term(params, None) is None


def test_distillation_is_the_distance_from_what_is_said_of_the_same_rows(workspace):
    """In one pass of all tasks: KL of the teacher's probabilities from the model's, squared distance for scores."""
    params, model, streams, losses = setting(
        workspace, noisy=False, encoder={"dropout": 0.0, "attention_dropout": 0.0},
        distill={"weight": 3, "teacher": "somewhere"},
    )  # fmt: skip
    draws = torch.Generator().manual_seed(0)
    said = {task: torch.randn(60, size, generator=draws).softmax(-1) for task, size in (("sst", 5), ("qqp", 2))}
    said["sts"] = torch.randn(60, 1, generator=draws)
    batches = [next(streams[task]) for task in said]
    parts = Objective(model, losses, terms={"distill": distill_term(params, said)})(*batches)
    for batch, part in zip(batches, parts):
        taught, out = said[batch.task][batch.rows], model(batch.task, batch.inputs).outputs.detach()
        if batch.task == "sst":
            distance = kl_divergence(Categorical(taught), Categorical(logits=out)).mean()
        elif batch.task == "qqp":
            distance = kl_divergence(Bernoulli(taught[:, 1]), Bernoulli(logits=out.view(-1))).mean()
        else:
            distance = (out - taught).pow(2).mean()
        assert part.penalties["distill"].item() == pytest.approx(distance.item(), rel=1e-4)
        assert part.total.item() == pytest.approx(part.loss.item() + 3 * distance.item(), rel=1e-4)


def test_the_search_for_noise_leaves_the_gradients_of_parameters_untouched(workspace):
    params, model, streams, losses = setting(workspace, smart={"lambda": 5, "steps": 3}, bregman={"mu": 1})
    teacher = teacher_of(params, model)
    terms = {"smart": smart_term(params), "bregman": bregman_term(params, teacher)}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    (parts,) = Objective(model, losses, terms=terms)(next(streams["sts"]))
    assert all((parameter.grad == 7.0).all() for parameter in model.parameters())
    parts.total.backward()
    assert not (model.heads["sts"].output.weight.grad == 7.0).all()
    assert all(parameter.grad is None for parameter in teacher.teacher.model.parameters())


def test_the_gradient_of_the_penalty_reaches_the_clean_side_as_well(workspace):
    """With noise that is fixed, the divergence's gradient in the head is that of both outputs together."""
    params, model, streams, losses = setting(
        workspace, noisy=False, smart={"lambda": 1, "sigma": 0.5, "radius": 0.5, "steps": 0}
    )
    (parts,) = Objective(model, losses, terms={"smart": smart_term(params)})(batch := next(streams["sts"]))
    parts.penalties["smart"].backward()
    found = model.heads["sts"].output.weight.grad.clone()
    term = smart_term(params)  # its generator starts anew: the same noise
    given = []
    model.encoder.transformer.register_forward_pre_hook(
        lambda _, __, kwargs: given.append(kwargs["inputs_embeds"].detach()), with_kwargs=True
    )
    Objective(model, losses, terms={"smart": term})(batch)
    clean, noisy = (model.encoder.encode(embeddings, batch.inputs[0]).detach() for embeddings in given[:2])
    weight = model.heads["sts"].output.weight.detach()
    gap = ((noisy - clean) @ weight.T).squeeze(1)  # the bias cancels
    by_hand = 2 * (gap[:, None] * (noisy - clean)).mean(dim=0, keepdim=True)
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("task", "encoding"), [("sst", "cross"), ("sts", "cross"), ("qqp", "bi")])
def test_the_teacher_follows_by_its_momentum_heads_and_all_and_takes_no_gradient(workspace, task, encoding):
    params, model, streams, losses = setting(workspace, encoding, bregman={"mu": 1, "momentum": 0.75})
    teacher = teacher_of(params, model)
    before = {name: value.clone() for name, value in teacher.teacher.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    teacher.update(model, 1)
    after, current = teacher.teacher.state_dict(), model.state_dict()
    assert any(name.startswith(f"heads.{task}.") for name in before)
    for name, old in before.items():
        by_hand = 0.75 * old.double() + 0.25 * current[name].double()
        torch.testing.assert_close(after[name].double(), by_hand, rtol=1e-6, atol=1e-6)
    (parts,) = Objective(model, losses, terms={"bregman": bregman_term(params, teacher)})(next(streams[task]))
    assert parts.penalties["bregman"] > 0
    parts.total.backward()
    assert all(
        parameter.grad is None and not parameter.requires_grad for parameter in teacher.teacher.model.parameters()
    )


def test_the_mask_that_regularizers_see_is_that_of_the_texts(workspace):
    params, model, streams, losses = setting(workspace, "bi", r_drop={"alpha": 1})
    seen = []
    term = r_drop_term(params)
    watched = term._replace(compute=lambda of: (seen.append(of.mask), term.compute(of))[1])
    batch = next(streams["qqp"])
    Objective(model, losses, terms={"r_drop": watched})(batch)
    (mask,) = seen
    for rows, tokens in zip(mask.chunk(2), batch.inputs):
        width = tokens["attention_mask"].shape[1]
        assert torch.equal(rows[:, :width], tokens["attention_mask"]) and not rows[:, width:].any()


@pytest.mark.parametrize("encoding", ["cross", "bi"])
def test_without_noise_all_is_exactly_zero_where_several_tasks_share_a_pass(workspace, encoding):
    still = {"lambda": 5, "sigma": 0, "eta": 0}
    params, model, streams, losses = setting(workspace, encoding, smart=still, bregman={"mu": 1}, r_drop={"alpha": 1})
    terms = {
        "smart": smart_term(params),
        "bregman": bregman_term(params, teacher_of(params, model)),
        "r_drop": r_drop_term(params),
    }
    for parts in Objective(model, losses, terms=terms)(*[next(streams[task]) for task in ("sst", "qqp", "sts")]):
        assert parts.penalties["smart"].item() == parts.penalties["bregman"].item() == 0.0
        assert parts.penalties["r_drop"] > 0


@pytest.mark.parametrize("encoding", ["cross", "bi"])
def test_a_batch_has_the_same_parts_and_gradients_beside_others_as_alone(workspace, encoding):
    """Bregman's penalty, as it is the one that draws nothing; the order of the batches makes no difference either."""

    def run(*groups):
        params, model, streams, losses = setting(workspace, encoding, noisy=False, bregman={"mu": 0.7})
        teacher = teacher_of(params, model)
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        objective = Objective(model, losses, Fixed({"qqp": 0.5}), {"bregman": bregman_term(params, teacher)})
        batches = {task: next(streams[task]) for task in ("sst", "qqp", "sts")}
        told = {}
        for group in groups:
            for task, parts in zip(group, found := objective(*[batches[task] for task in group])):
                told[task] = [parts.total.item(), parts.loss.item(), parts.penalties["bregman"].item()]
            sum(parts.total for parts in found).backward()
        return told, [parameter.grad.to_dense() for parameter in model.parameters() if parameter.grad is not None]

    told, gradients = run(["sst"], ["qqp"], ["sts"])
    for groups in ([["sst", "qqp", "sts"]], [["sts", "qqp"], ["sst"]]):
        beside, beside_gradients = run(*groups)
        for task, numbers in told.items():
            assert beside[task] == pytest.approx(numbers, rel=1e-4)
        for one, other in zip(gradients, beside_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_noise_of_a_task_hurts_its_own_penalty_whatever_shares_the_pass(workspace):
    params, model, streams, losses = setting(workspace, noisy=False, smart={"lambda": 1, "sigma": 0.1, "radius": 0.1})
    objective = Objective(model, losses, terms={"smart": smart_term(params)})
    given = []
    model.encoder.transformer.register_forward_pre_hook(
        lambda _, __, kwargs: given.append(kwargs["inputs_embeds"].detach()), with_kwargs=True
    )
    batches = [next(streams[task]) for task in ("sst", "qqp", "sts")]
    penalties = [parts.penalties["smart"].item() for parts in objective(*batches)]
    block = Block.of([(batch.task, batch.inputs) for batch in batches])
    clean, _, noisy = given
    before, after = (model.from_embeddings(embeddings, block) for embeddings in (clean, noisy))
    (sst, qqp, sts), (sst_noisy, qqp_noisy, sts_noisy) = ([of.outputs.double() for of in x] for x in (before, after))
    p, q = sst.softmax(-1), sst_noisy.softmax(-1)
    by_hand = [((p - q) * (p.log() - q.log())).sum(-1).mean()]
    by_hand += [((qqp.sigmoid() - qqp_noisy.sigmoid()) * (qqp - qqp_noisy)).mean(), (sts - sts_noisy).square().mean()]
    assert penalties == pytest.approx([value.item() for value in by_hand], rel=1e-3)


def test_tasks_with_the_same_regularizers_make_one_group_and_none_is_left_out(workspace):
    params, model, _, losses = setting(workspace, smart={"lambda": 5, "tasks": ["qqp"]}, r_drop={"alpha": 1})
    assert Objective(model, losses).groups(("sst", "qqp", "sts")) == [["sst", "qqp", "sts"]]
    terms = {"r_drop": r_drop_term(params), "smart": smart_term(params)}
    assert Objective(model, losses, terms=terms).groups(("sst", "qqp", "sts")) == [["sst", "sts"], ["qqp"]]
    assert Objective(model, losses, terms=terms).groups(("qqp",)) == [["qqp"]]


def test_smart_every_third_step_counts_in_a_tasks_own_steps_and_draws_no_noise_in_between(workspace):
    """In a round robin of three tasks too, where every third step of all would be those of one task."""
    params, model, streams, losses = setting(workspace, smart={"lambda": 5, "every": 3})
    term = smart_term(params)
    computed = []
    watched = term._replace(compute=lambda of: (computed.append(of.block.layout[0][0]), term.compute(of))[1])
    objective = Objective(model, losses, terms={"smart": watched})
    told = {"sst": [], "qqp": [], "sts": []}
    for _ in range(7):
        for task in told:
            objective.begin([task])
            told[task].append("smart" in objective(next(streams[task]))[0].penalties)
    assert all(of == [True, False, False, True, False, False, True] for of in told.values())
    assert computed == ["sst", "qqp", "sts"] * 3
