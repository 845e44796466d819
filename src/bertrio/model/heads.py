r"""Heads: `(*pooled [B, H]) -> HeadOutput`, one for each task, on one pooled vector u or two, u and v.

All but `cosine` have the same structure:

    u (, v) -> projection -> features -> dropout -> depth x (linear, activation, dropout) -> linear -> outputs

where the projection, a linear layer and the activation on each vector, is optional. Heads differ in `features`, the one
method of their class. Tasks can share their projection or their fusion, the layer that joins two sentences, see
`build_heads`. A head's options are the annotated arguments of its class. To add a head, write the class and add it to
`HEADS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from bertrio.core.options import Count, Group, Positive, Real, Whole, choose, one_of, options_of
from bertrio.core.tasks import Binary, HeadOutput, Score, Target

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,  # slope 0.01 below 0
    "gelu": F.gelu,
    "tanh": torch.tanh,
}
Activation = Annotated[str, one_of(ACTIVATIONS)]
Depth = Annotated[Whole, Field(ge=0)]


def cosine_similarity(u: Tensor, v: Tensor) -> Tensor:
    r"""Cosine of the angle between each row of u and v, both [B, H]: [B], from -1 to 1, in float32.

    .. math:: \cos(u, v) = \frac{u \cdot v}{\max(\|u\|, \epsilon) \max(\|v\|, \epsilon)}, \quad \epsilon = 10^{-8}

    "BERT With Multitask Fine-Tuning and Loss Construction", section 4.2.1. The paper bounds the product of
    the norms; here each norm is bounded, as in torch. Rounding can push the result past 1 by a few 1e-7. A zero vector
    has cosine 0 with any other; its gradient there is finite but of the order of 1 / epsilon.
    """
    return F.cosine_similarity(u.float(), v.float(), dim=-1, eps=1e-8)


class Head(nn.Module):
    """Base class of heads, with an activation, dropout and an optional projection.

    The arguments of a subclass are `(hidden_size, target, size, dropout, **options)`.
    """

    vectors: ClassVar[int]  # number of pooled vectors
    options: ClassVar[tuple[str, ...]]  # arguments that users may set

    def __init__(self, hidden_size: int, dropout: float, activation: str, projection: bool) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(hidden_size, hidden_size) if projection else None

    def project(self, pooled: Sequence[Tensor]) -> list[Tensor]:
        """Apply the projection, if there is one, to each vector [B, H]."""
        if self.projection is None:
            return list(pooled)
        return [self.activation(self.projection(vector)) for vector in pooled]


class FeedForward(Head):
    """Dropout on the `features` of the vectors, `depth` hidden layers, and a linear layer.

    Args:
        hidden_size: H.
        target: ignored, part of the common signature.
        size: number of outputs.
        dropout: rate on the features and on each hidden layer.
        depth: number of hidden layers; None for `min_depth`.
        width: units of each hidden layer; None for H. Ignored at depth 0.
        activation: name in ACTIVATIONS, for hidden layers and projection.
        projection: apply a linear layer H to H and the activation to each vector first.

    Raises:
        ValueError: if `depth` is below `min_depth`.
    """

    vectors = 2
    features: ClassVar[Callable[..., Tensor]]  # combines the vectors [B, H] into features [B, F]
    min_depth: ClassVar[int] = 0
    options: ClassVar[tuple[str, ...]] = ("depth", "width", "activation", "projection")

    def __init__(
        self,
        hidden_size: int,
        target: Target,
        size: int,
        dropout: float,
        depth: Depth | None = None,
        width: Count | None = None,
        activation: Activation = "relu",
        projection: bool = False,
    ) -> None:
        super().__init__(hidden_size, dropout, activation, projection)
        depth = self.min_depth if depth is None else depth
        width = hidden_size if width is None else width
        if depth < self.min_depth:
            raise ValueError(f"head_options.depth: expected {self.min_depth} or more, found {depth}; linear has none")
        joined = self.features(*[torch.zeros(1, hidden_size)] * self.vectors).shape[-1]
        self.hidden = nn.ModuleList(nn.Linear(width if layer else joined, width) for layer in range(depth))
        self.output = nn.Linear(width if depth else joined, size)

    def forward(self, *pooled: Tensor) -> HeadOutput:
        state = self.dropout(self.features(*self.project(pooled)))
        for layer in self.hidden:
            state = self.dropout(self.activation(layer(state)))
        return HeadOutput(self.output(state))


class Mlp(FeedForward):
    r"""Hidden layers on the pooled vector of a single text or of a cross-encoded pair.

    .. math:: o = W_2 \, a(W_1 u)

    at depth 1, with a the activation and biases left out. "BERT++: Trustworthy MultiTask Learning with BERT", section
    4.3.1 (additional layers in prediction heads). Arguments as in `FeedForward`; `depth` is at least 1.
    """

    vectors = 1
    min_depth = 1
    options: ClassVar[tuple[str, ...]] = ("depth", "width", "activation")  # a projection would be one more hidden layer

    @staticmethod
    def features(u: Tensor) -> Tensor:
        return u


class Linear(Mlp):
    r"""Dropout, then one linear layer on the pooled vector of a single text or of a cross-encoded pair.

    .. math:: o = W u

    Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", section 4.1.
    """

    min_depth = 0
    options = ()


class Concat(FeedForward):
    r"""Concatenation of the two vectors.

    .. math:: o = W [u; v]

    "BERT and Beyond: A Study of Multitask Learning Strategies for NLP", section 3.2. Arguments as in `FeedForward`.
    """

    @staticmethod
    def features(u: Tensor, v: Tensor) -> Tensor:
        return torch.cat((u, v), dim=-1)


class Siamese(FeedForward):
    r"""The two vectors and their absolute difference.

    .. math:: o = W [u; v; |u - v|]

    Reimers and Gurevych 2019, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", section 3,
    classification objective. Arguments as in `FeedForward`.
    """

    @staticmethod
    def features(u: Tensor, v: Tensor) -> Tensor:
        return torch.cat((u, v, (u - v).abs()), dim=-1)


class SiameseProduct(FeedForward):
    r"""The two vectors, their absolute difference and their elementwise product.

    .. math:: o = W [u; v; |u - v|; u * v]

    Conneau et al. 2017, "Supervised Learning of Universal Sentence Representations from Natural Language Inference
    Data", section 3.1; in Reimers and Gurevych 2019, section 6, the product did not help. Arguments as in
    `FeedForward`.
    """

    @staticmethod
    def features(u: Tensor, v: Tensor) -> Tensor:
        return torch.cat((u, v, (u - v).abs(), u * v), dim=-1)


class SiameseCosine(FeedForward):
    r"""The two vectors, their absolute difference and their cosine.

    .. math:: o = W [u; v; |u - v|; \cos(u, v)]

    "BERT With Multitask Fine-Tuning and Loss Construction", section 4.2.1, combined fine-tuning. The paper's joint
    layer is this head for both pair tasks, with `activation` leaky_relu and a shared fusion (hence depth 1):
    o = W_t LeakyReLU(W [u; v; |u - v|; cos]). Arguments as in `FeedForward`.
    """

    @staticmethod
    def features(u: Tensor, v: Tensor) -> Tensor:
        return torch.cat((u, v, (u - v).abs(), cosine_similarity(u, v).unsqueeze(-1)), dim=-1)


# Scalings: `(cosine [B], target, scale, threshold) -> output [B]`, the input of the target's `predict`.
Scaling = Callable[[Tensor, Any, float, float], Tensor]


def score_relu(cosine: Tensor, target: Score, scale: float, threshold: float) -> Tensor:
    r"""Score in proportion to the positive part of the cosine, from low to high.

    .. math:: o = l + (h - l) \max(\cos, 0)

    "A Comprehensive Analysis of Fine-Tuning Strategies for BERT", section 4, cosine-similarity fine-tuning: ReLU
    times 5. The gradient vanishes where the cosine is below 0.
    """
    return target.low + (target.high - target.low) * cosine.relu()


def score_sigmoid(cosine: Tensor, target: Score, scale: float, threshold: float) -> Tensor:
    r"""Score in proportion to the sigmoid of the scaled cosine, from low to high.

    .. math:: o = l + (h - l) \, \sigma(s \cos)

    "BERT++: Trustworthy MultiTask Learning with BERT", sections 4.3.5 and 5. Scores cover only sigma(-s) to
    sigma(s) of the range: at s = 1, 27 % to 73 %, which the paper found too narrow.
    """
    return target.low + (target.high - target.low) * (scale * cosine).sigmoid()


def score_affine(cosine: Tensor, target: Score, scale: float, threshold: float) -> Tensor:
    r"""Score as a linear function of the cosine, low at -1 and high at 1.

    .. math:: o = l + (h - l) (\cos + 1) / 2

    "SMART Fine-tuning", section on cosine similarity: the similarity from -1 to 1, "rescaled accordingly".
    """
    return target.low + (target.high - target.low) * (cosine + 1) / 2


def binary_relu(cosine: Tensor, target: Binary, scale: float, threshold: float) -> Tensor:
    r"""Logit of the positive class, whose probability is the positive part of the cosine.

    .. math:: o = \log \frac{p}{1 - p}, \quad p = \min(\max(\cos, \epsilon), 1 - \epsilon), \quad \epsilon = 10^{-6}

    "BERT++: Trustworthy MultiTask Learning with BERT", section 4.3.5; the clamp is added here to keep the logit
    finite. The gradient vanishes where it is active: pairs with a cosine of 0 or less do not train the model.
    """
    return cosine.logit(eps=1e-6)


def binary_logit(cosine: Tensor, target: Binary, scale: float, threshold: float) -> Tensor:
    r"""Logit of the positive class: the scaled difference of cosine and threshold.

    .. math:: o = s (\cos - t)

    "BERT++: Trustworthy MultiTask Learning with BERT", section 4.4 (a sigmoid over the cosine in the loss), with s = 1
    and t = 0. Both are options here, because with s = 1 probabilities cover only 27 % to 73 %.
    """
    return scale * (cosine - threshold)


SCALINGS: dict[type[Target], dict[str, Scaling]] = {  # the first is the default
    Score: {"relu": score_relu, "sigmoid": score_sigmoid, "affine": score_affine},
    Binary: {"logit": binary_logit, "relu": binary_relu},
}
DEFAULT_SCALES = {Score: 5.0, Binary: 20.0}


class Cosine(Head):
    r"""Dropout on each vector, the optional projection, their cosine, and its scaling to the target.

    .. math:: o = f(\cos(u', v')), \quad u' = a(W u)

    "BERT++: Trustworthy MultiTask Learning with BERT", section 4.3.5: linear layers with dropout, activation, cosine.
    After a projection with `relu` no cosine is below 0. The HeadOutput includes the raw cosine, u' and v'. Without
    projection the head has no parameters, and only the encoder is trained.

    Args:
        hidden_size: H.
        target: a score or a binary target.
        size: 1.
        dropout: rate on each vector.
        activation: name in ACTIVATIONS, for the projection.
        projection: apply a linear layer H to H and the activation to each vector.
        scaling: name in SCALINGS for the type of target (default: the first one).
        scale: factor on the cosine, above 0, for `sigmoid` (default: 5) and `logit` (20); others ignore it.
        threshold: cosine at probability 0.5, from -1 to 1, for the scaling `logit`; others ignore it.

    Raises:
        ValueError: if there is no scaling for the target, `scaling` is not one of them, or `size` is not 1.
    """

    vectors = 2
    options = ("activation", "projection", "scaling", "scale", "threshold")

    def __init__(
        self,
        hidden_size: int,
        target: Target,
        size: int,
        dropout: float,
        activation: Activation = "relu",
        projection: bool = False,
        scaling: str | None = None,
        scale: Positive | None = None,
        threshold: Annotated[Real, Field(ge=-1, le=1)] = 0.8,
    ) -> None:
        super().__init__(hidden_size, dropout, activation, projection)
        kind = type(target)
        if kind not in SCALINGS:
            names = " or ".join(kind.__name__ for kind in SCALINGS)
            raise ValueError(f"head cosine needs a {names} target, found {kind.__name__}; use siamese")
        if size != 1:
            raise ValueError(f"head cosine has 1 output, and {size} are needed; use another loss or head")
        name = scaling or next(iter(SCALINGS[kind]))
        self.scaling: Scaling = choose(SCALINGS[kind], name, f"head_options.scaling of a {kind.__name__} target")
        self.target, self.scale, self.threshold = target, scale or DEFAULT_SCALES[kind], threshold

    def forward(self, u: Tensor, v: Tensor) -> HeadOutput:
        u, v = self.project([self.dropout(u), self.dropout(v)])
        cosine = cosine_similarity(u, v)
        output = self.scaling(cosine, self.target, self.scale, self.threshold)
        return HeadOutput(output.unsqueeze(-1), cosine, (u, v))


HEADS: dict[str, type[Head]] = {
    "linear": Linear,
    "mlp": Mlp,
    "concat": Concat,
    "siamese": Siamese,
    "siamese_product": SiameseProduct,
    "siamese_cosine": SiameseCosine,
    "cosine": Cosine,
}
LAYER_OPTIONS = {"projection": "projection", "fusion": "depth"}  # the option that adds a layer to a head
SHARES: dict[str, tuple[str, ...]] = {
    "none": (),
    "projection": ("projection",),
    "fusion": ("fusion",),
    "both": ("projection", "fusion"),
}


@dataclass(frozen=True)
class HeadSpec:
    """Specification of a head: `name`, the task's `target`, number of outputs (`size`), dropout and options."""

    name: str
    target: Target
    size: int
    dropout: float
    options: Mapping[str, Any]


@lru_cache
def head_options(name: str) -> type[Group]:
    """Return the type of the options that users may set for head `name`."""
    return options_of(HEADS[name].__init__, HEADS[name].options)


def build_heads(
    specs: Mapping[str, HeadSpec], hidden_size: int, share: str = "none", share_tasks: Sequence[str] = ()
) -> dict[str, nn.Module]:
    """Return the heads of all tasks, some of which may share linear layers.

    `projection` is the layer on the sentence vectors, `fusion` the first hidden layer, which joins the two sentences.
    `options_to_share` gives heads these layers. Only linear layers are shared; activation, dropout and other layers
    belong to each task. "BERT++: Trustworthy MultiTask Learning with BERT", section 5 (both); "BERT With
    Multitask Fine-Tuning and Loss Construction", section 4.2.1 (the fusion).

    A shared layer is one module in several heads: `parameters()` yields it once, under its name in the first head, and
    `state_dict()` contains it under each of its names.

    Args:
        specs: specifications by task. All heads draw their layers, shared or not, from the global generator in this
            order; sharing tasks use the layer of the first of them.
        hidden_size: H.
        share: none, projection, fusion or both.
        share_tasks: two or more tasks that share, in any order; ignored if `share` is none.

    Raises:
        ValueError: if a head does not fit its options or target, or can't share the layer; if shared fusions differ in
            width.
    """
    parts, sharing = SHARES[share], [task for task in specs if task in share_tasks]
    for task, part in itertools.product(sharing, parts):
        if LAYER_OPTIONS[part] not in HEADS[specs[task].name].options:
            capable = ", ".join(name for name, head in HEADS.items() if LAYER_OPTIONS[part] in head.options)
            raise ValueError(f"task {task}: head {specs[task].name} can't share a {part}; can: {capable}")
    heads: dict[str, Any] = {task: _build_head(spec, hidden_size) for task, spec in specs.items()}
    if "fusion" in parts:
        widths = {task: (heads[task].hidden[0].in_features, heads[task].hidden[0].out_features) for task in sharing}
        if len(set(widths.values())) > 1:
            listed = ", ".join(f"{task} {inputs} to {outputs}" for task, (inputs, outputs) in widths.items())
            raise ValueError(
                f"tasks that share a fusion need the same widths, found {listed}; give them the same head and "
                "head_options.width"
            )
    for task in sharing[1:]:
        if "projection" in parts:
            heads[task].projection = heads[sharing[0]].projection
        if "fusion" in parts:
            heads[task].hidden[0] = heads[sharing[0]].hidden[0]
    return heads


def options_to_share(options: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """Return the options of a head, changed so that it has the layers `parts` (projection, fusion) to share.

    Raises:
        ValueError: if the options rule out such a layer.
    """
    options = dict(options)
    if "projection" in parts and not options.setdefault("projection", True):
        raise ValueError("head_options.projection: expected true, to share a projection, found false")
    if "fusion" in parts and not options.setdefault("depth", 1):
        raise ValueError("head_options.depth: expected 1 or more, to share a fusion, found 0")
    return options


def _build_head(spec: HeadSpec, hidden_size: int) -> Head:
    build: Callable[..., Head] = HEADS[spec.name]
    return build(hidden_size, spec.target, spec.size, spec.dropout, **spec.options)
