"""A model's weights, split among the processes of a run (FSDP), or whole in each of them.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", stage 3, by torch's
`fully_shard`: of every parameter each process keeps a piece of the rows, with its gradient and what the optimizer
gathers of it. A layer's weights are put together when it runs, and its gradients are added up and cut again when its
backward pass ends.

Nothing else has to know of it. What works on parameters (optimizer, surgery, penalties, averages) is given
`Shards.own`, a model of plain tensors that are the pieces: all of it works number by number, but for norms and inner
products, which are summed over the processes. What saves and loads calls `state_dict` and `load_state_dict`, which
give and take whole tensors.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bertrio.core.errors import UserError

METHODS = ("embed", "from_embeddings")  # by which a model is run in training, beside its `forward`
VERSION_2 = "accelerate launch --use_fsdp --fsdp_version 2"


@dataclass(frozen=True)
class Sharding:
    """How a model is to be split, as accelerate's config says.

    Attributes:
        reshard: whether a layer's whole weights are given up between its forward and its backward pass
            (`fsdp_reshard_after_forward`).
        offload: whether pieces, gradients and the optimizer's state lie in the CPU's memory (`fsdp_offload_params`);
            of no account where the CPU computes.
        layers: names of the classes of modules that are put together one at a time
            (`fsdp_transformer_layer_cls_to_wrap`); none for the encoder's layers.
        recompute: whether hidden states are worked out again for the backward pass (`fsdp_activation_checkpointing`).
    """

    reshard: bool = True
    offload: bool = False
    layers: tuple[str, ...] = ()
    recompute: bool = False


def asked_for() -> Sharding | None:
    """What `accelerate launch` was told of FSDP; None if nothing.

    Raises:
        UserError: if it is FSDP 1, or an option that can't be had.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return None
    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise UserError(
            f"accelerate's config asks for FSDP {version}, which packs weights into flat tensors without gradients of "
            f"their own; FSDP 2 is supported: {VERSION_2}, or fsdp_version: 2 in the config"
        )
    from accelerate import FullyShardedDataParallelPlugin  # a slow import

    try:
        with warnings.catch_warnings():  # of options of FSDP 1, which the launcher names in any case
            warnings.simplefilter("ignore")
            options = FullyShardedDataParallelPlugin()
    except (ValueError, ImportError) as error:
        raise UserError(f"accelerate's config of FSDP can't be used: {error}") from error
    _check(options)
    # By which transformers would load weights in one process alone, for others to get them in accelerate's own way
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    return Sharding(
        options.reshard_after_forward,
        os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true",
        tuple(options.transformer_cls_names_to_wrap or ()),
        options.activation_checkpointing,
    )


def _check(options: Any) -> None:
    """Raises UserError for what would train something else, or not do what was asked for."""
    by_size, ignored = options.min_num_params is not None, options.ignored_modules
    offloads = getattr(options, "activation_checkpointing_offload", False)
    refused = {
        "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP, which may cut through a layer" if by_size else None,
        "fsdp_ignored_modules": f"{ignored}, whose gradients nobody would add up" if ignored else None,
        "fsdp_activation_checkpointing_offload": "true, which is not supported" if offloads else None,
    }
    for name, found in refused.items():
        if found is not None:
            raise UserError(f"accelerate's config: {name}: found {found}; leave it out")


class Whole:
    """The weights of a model that each process holds whole; `Shards` is the other kind.

    Attributes:
        own: the model whose parameters the optimizer moves.
    """

    def __init__(self, model: nn.Module) -> None:
        self.own, self._processes = model, model.runtime.processes

    def add_up(self, parameters: Iterable[nn.Parameter]) -> None:
        """Makes each gradient the sum of those of all processes; `parameters` may have others beside the model's."""
        self._processes.add_up(parameters)

    def joint_norm(self, norm: Tensor) -> Tensor:
        """The norm of what all processes keep, from the 2-norm of what this one keeps."""
        return norm

    def joint_products(self, products: Tensor) -> Tensor:
        """Inner products of what all processes keep, from those of what this one keeps: float64 on the CPU."""
        return products

    def gathered(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """A tensor like `parameter`, or a number that belongs to it, as it is for the whole parameter."""
        return value

    def piece(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """What this process keeps of what `gathered` gave."""
        return value

    def check_equal(self) -> None:
        """Checks that all processes hold the same bits, where they should. Raises as `Processes.check_equal`."""
        self._processes.check_equal(self.own.parameters())

    def as_whole(self) -> nn.Module:
        """The model with all of its weights."""
        return self.own


class Shards(Whole):
    """The piece that this process keeps of each weight of a model; all processes call the same methods in turn.

    Attributes:
        own: a model of the same layout, for its parameters alone: plain tensors in the memory of the pieces, rows of
            the first dimension, which may be none at all. It can't be run.

    Raises:
        UserError: if the processes do not hold the same weights, or one of them can't be split.
    """

    def __init__(self, model: nn.Module, units: Sequence[nn.Module], sharding: Sharding) -> None:
        self._processes = processes = model.runtime.processes
        processes.check_equal(model.parameters())
        _check_shapes(model)
        device = model.runtime.device
        self.own = _likeness(model, torch.device("cpu") if sharding.offload else device)
        _shard(model, units, sharding, device, processes.count)
        self._device, self._pieces = device, {}
        with torch.no_grad():
            for own, shard in zip(self.own.parameters(), model.parameters(), strict=True):
                own.data = shard.to_local()
                self._pieces[own] = shard
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_state_dict_post_hook(partial(self._give_whole))  # torch marks it
                module.register_load_state_dict_pre_hook(self._take_whole)

    def add_up(self, parameters: Iterable[nn.Parameter]) -> None:
        """Hands over the pieces of gradients, which torch has added up; adds up those of parameters that are whole."""
        whole = []
        for parameter in parameters:
            shard = self._pieces.get(parameter)
            if shard is None:
                whole.append(parameter)
            elif shard.grad is not None:
                parameter.grad, shard.grad = shard.grad.to_local(), None
        self._processes.add_up(whole)

    def joint_norm(self, norm: Tensor) -> Tensor:
        square = norm.double().square().to(self._device)
        return self._processes.sums({"square": square})["square"].sqrt().to(norm)  # device and dtype

    def joint_products(self, products: Tensor) -> Tensor:
        self._processes.put_together_on_host(products.numpy())
        return products

    def gathered(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        shard = self._pieces.get(parameter)
        return value if shard is None or not value.ndim else self._gathered(shard, value)

    def piece(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        return value if parameter not in self._pieces or not value.ndim else self._piece(value)

    def check_equal(self) -> None:
        """Nothing: no two processes hold the same, and all was equal when it was split."""

    def as_whole(self) -> nn.Module:
        """A copy of the model with all of its weights, in the CPU's memory."""
        whole = copy.deepcopy(self.own)
        for parameter, (own, shard) in zip(whole.parameters(), self._pieces.items(), strict=True):
            parameter.data = self._gathered(shard, own.detach())
        return whole

    def _gathered(self, shard: Any, piece: Tensor) -> Tensor:
        """The whole tensor of which this process has `piece`, split as `shard` is, in the CPU's memory."""
        from torch.distributed.tensor import DTensor

        local = piece.to(self._device)  # where its messages are
        layout = {"run_check": False, "shape": shard.shape, "stride": shard.stride()}
        return DTensor.from_local(local, shard.device_mesh, shard.placements, **layout).full_tensor().cpu()

    def _piece(self, whole: Tensor) -> Tensor:
        pieces = whole.chunk(self._processes.count)  # as torch splits: the last processes may have less, or nothing
        piece = pieces[self._processes.rank] if self._processes.rank < len(pieces) else whole[:0]
        return piece.clone()  # or the whole stays in memory as long as the piece

    def _give_whole(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name, _ in module.named_parameters(recurse=False):
            shard = state[prefix + name]
            state[prefix + name] = self._gathered(shard, shard.to_local())

    def _take_whole(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        from torch.distributed.tensor import DTensor

        for name, shard in module.named_parameters(recurse=False):
            if (whole := state.get(prefix + name)) is not None:
                local = self._piece(whole).to(shard.to_local().device)
                layout = {"run_check": False, "shape": whole.shape, "stride": shard.stride()}
                state[prefix + name] = DTensor.from_local(local, shard.device_mesh, shard.placements, **layout)


def split(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Splits the weights of a model among the processes of its run if their launcher asked for it; else nothing.

    Args:
        model: with the same weights in all processes; `weights_of` gives what a process then keeps.
        layers: the parts that are put together one at a time, each in its turn: they must be called as modules.

    Raises:
        UserError: if it can't be split.
    """
    sharding = model.runtime.processes.sharding
    if sharding is not None:
        model.weights = Shards(model, [*layers, *_named(model, sharding.layers)], sharding)


def weights_of(model: nn.Module) -> Whole:
    """What this process keeps of the weights of a model."""
    return getattr(model, "weights", None) or Whole(model)


def _named(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The modules of these classes, those inside of others first.

    Raises:
        UserError: if there is none of one of the names.
    """
    found = [module for module in model.modules() if type(module).__name__ in names]
    if lost := set(names) - {type(module).__name__ for module in found}:
        raise UserError(
            f"accelerate's config: fsdp_transformer_layer_cls_to_wrap: found {', '.join(sorted(lost))}, which this "
            "model has no modules of; leave it out, and the encoder's layers are taken"
        )
    return found[::-1]


def _check_shapes(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.ndim:
            raise UserError(
                f"{name} is a single number, a parameter without dimensions, which FSDP can't split; launch with "
                "accelerate launch --multi_gpu, or give it one dimension"
            )


def _likeness(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of `model` with empty parameters and the very same buffers."""
    known: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        empty = torch.empty(0, dtype=parameter.dtype, device=device)
        known[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, known)


def _shard(model: nn.Module, units: Sequence[nn.Module], sharding: Sharding, device: torch.device, count: int) -> None:
    """Makes a model of pieces of `model`, in place; gradients are sums over the processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise UserError(f"FSDP needs a newer torch than {torch.__version__}, in which gradients can be added up")
    # A model that is never trained has no backward pass, which would give up what was put together for the last one
    reshard = sharding.reshard or not any(parameter.requires_grad for parameter in model.parameters())
    on_host = sharding.offload and device.type == "cuda"
    options = {
        "mesh": init_device_mesh(device.type, (count,)),
        "reshard_after_forward": reshard,
        "offload_policy": CPUOffloadPolicy() if on_host else OffloadPolicy(),
    }
    parts = [*dict.fromkeys(units), model]
    for part in parts:
        fully_shard(part, **options)
        part.set_gradient_divide_factor(1.0)  # losses are weighted so that gradients add up: no mean is wanted
        part.set_force_sum_reduction_for_comms(True)  # else the factor goes into a message that gloo does not know
    for part in parts:  # torch makes the whole tensors when they are first needed, which must not be in inference mode
        part.unshard()
        part.reshard()
    for method in METHODS:
        register_fsdp_forward_method(model, method)
    # Heads give views of what they computed, and nobody here writes to outputs
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
