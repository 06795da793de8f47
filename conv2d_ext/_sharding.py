"""DTensor: how a convolution is split over the devices of a mesh.

Each axis of the mesh takes one of four ways, the one that moves the fewest elements:

    replicate   every device does everything
    batch       images are split; filters are whole, so their gradients are partial sums
    filters     output channels are split; the input is whole, so its gradient is a partial sum
    groups      channels of input and output are split along group borders (depthwise and the like)

DDP and FSDP do not need these rules: their convolutions see plain tensors. The rules are registered
when any part of the program imports torch.distributed.tensor, which takes a second. A torch without
it works too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _ops
from ._after_import import after_import
from ._arguments import ConvParams
from ._autograd import _conv2d_autograd, _conv2d_backward_autograd
from ._checks import check_residual
from ._fused import ACTIVATIONS, _conv2d_act
from ._transposed import _conv_transpose2d


class _Operator(NamedTuple):
    """A private operator, and for each way to split it a letter per tensor and one for the result.

    "r" stands for a replicated tensor, "p" for a partial sum, a digit for a split along that axis.
    """

    name: str
    run: Callable[..., Tensor]
    tensors: tuple[str, ...]
    filters_in: tuple[int, int]  # which tensor's size along which axis is the number of filters
    ways: dict[str, str]


_OPERATORS = (
    _Operator(
        name="_conv2d",
        run=_ops.forward,
        tensors=("input", "weight", "bias"),
        filters_in=(1, 0),
        ways={"replicate": "rrrr", "batch": "0rr0", "filters": "r001", "groups": "1001"},
    ),
    _Operator(
        name="_conv2d_input_grad",
        run=_ops.input_grad,
        tensors=("grad_output", "weight"),
        filters_in=(1, 0),
        ways={"replicate": "rrr", "batch": "0r0", "filters": "10p", "groups": "101"},
    ),
    _Operator(
        name="_conv2d_weight_grad",
        run=_ops.weight_grad,
        tensors=("grad_output", "input"),
        filters_in=(0, 1),
        ways={"replicate": "rrr", "batch": "00p", "filters": "1r0", "groups": "110"},
    ),
    _Operator(
        name="_conv2d_bias_grad",
        run=_ops.bias_grad,
        tensors=("grad_output",),
        filters_in=(0, 1),
        ways={"replicate": "rr", "batch": "0p", "filters": "10"},
    ),
)


def _place(letter: str) -> Any:
    # Imported here because a program without DTensor should not wait a second for it.
    from torch.distributed.tensor import Partial, Replicate, Shard

    if letter.isdigit():
        return Shard(int(letter))
    return Replicate() if letter == "r" else Partial()


def _cost(tensors: Sequence[Any], axis: int, letters: str) -> tuple[float, int]:
    """Elements that a device sends along an axis of the mesh, and changes of placement."""
    pairs = [pair for pair in zip(tensors, letters, strict=False) if pair[0] is not None]
    moved = sum(_moved_elements(tensor, axis, letter) for tensor, letter in pairs)
    return moved, sum(tensor.placements[axis] != _place(letter) for tensor, letter in pairs)


def _moved_elements(tensor: Any, axis: int, letter: str) -> float:
    before, after = tensor.placements[axis], _place(letter)
    if before == after or before.is_replicate():
        return 0.0  # nothing to do, or a slice of the local tensor
    whole, share = tensor.numel(), tensor.numel() / tensor.device_mesh.size(axis)
    if before.is_partial():
        return 2.0 * whole if after.is_replicate() else whole
    return whole - share if after.is_replicate() else share


def _pick_ways(operator: _Operator, tensors: Sequence[Any], groups: int, filters: int) -> list[str]:
    """The cheapest way for each axis of the mesh; the first one if several cost the same."""
    mesh = tensors[0].device_mesh
    picked = []
    for axis in range(mesh.ndim):
        size = mesh.size(axis)
        costs = {}
        for way, letters in operator.ways.items():
            # Uneven shares would cut through groups, or leave a device without a filter.
            if way == "groups" and (groups == 1 or groups % size != 0):
                continue
            if way == "filters" and (groups > 1 or filters % size != 0):
                continue
            costs[way] = _cost(tensors, axis, letters)
        way = min(costs, key=lambda way: costs[way])
        picked.append(way)
        groups //= size if way == "groups" else 1
        filters //= size if way in ("filters", "groups") else 1
    return picked


def _check_operands(operator: _Operator, tensors: Sequence[Any], cls: type) -> None:
    for name, tensor in zip(operator.tensors, tensors, strict=True):
        if tensor is not None and not isinstance(tensor, cls):
            raise RuntimeError(
                f"convx.conv2d: expected all tensors to be DTensors, but {name} is a plain tensor "
                f"of size {list(tensor.shape)}"
            )
    mesh = tensors[0].device_mesh
    for name, tensor in zip(operator.tensors, tensors, strict=True):
        if tensor is not None and tensor.device_mesh != mesh:
            raise RuntimeError(
                f"convx.conv2d: expected {name} to be on the mesh of {operator.tensors[0]}, "
                f"{mesh}, but got {tensor.device_mesh}"
            )


def _run(operator: _Operator, cls: Any, args: Sequence[Any]) -> Any:
    """Redistributes the operands, computes the local result, and wraps it as a DTensor."""
    count = len(operator.tensors)
    tensors, numbers = args[:count], list(args[count:])
    _check_operands(operator, tensors, cls)
    # The operator's fake kernel has the sizes and strides of the whole result.
    whole = operator.run(*map(_like_on_meta, tensors), *numbers)

    mesh = tensors[0].device_mesh
    at = len(numbers) - len(ConvParams._fields) + ConvParams._fields.index("groups")
    groups = numbers[at] if numbers else 1
    which, axis = operator.filters_in
    ways = _pick_ways(operator, tensors, groups, tensors[which].shape[axis])
    if numbers:
        for axis, way in enumerate(ways):
            numbers[at] //= mesh.size(axis) if way == "groups" else 1

    placements = [[_place(letter) for letter in operator.ways[way]] for way in ways]
    with torch.no_grad():
        local = [
            _redistribute(tensor, wanted)
            for tensor, wanted in zip(tensors, zip(*placements, strict=True), strict=False)
        ]
        return cls.from_local(
            operator.run(*local, *numbers),
            mesh,
            [row[-1] for row in placements],
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )


def _redistribute(tensor: Any, placements: Sequence[Any]) -> Tensor | None:
    """This device's piece of a DTensor after its redistribution."""
    if tensor is None:
        return None
    if tensor.placements != tuple(placements):
        # torch 2.10 would try to detach the result in place, which DTensor cannot.
        tensor = tensor.detach().redistribute(placements=placements)
    return tensor.to_local()


def _like_on_meta(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _rule(operator: _Operator) -> Callable[..., Any]:
    def rule(cls: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _run(operator, cls, args)

    return rule


# The public operators reach the next rules in inference mode only. Otherwise their Autograd kernels
# run first.


def _conv2d_rule(cls: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return _conv2d_autograd(*args, **(kwargs or {}))


def _conv2d_backward_rule(cls: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return _conv2d_backward_autograd(*args, **(kwargs or {}))


def _conv2d_act_rule(cls: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return _conv2d_act(*args, **(kwargs or {}))


def _fused_rule(cls: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """A split sum is no sum yet: DTensor adds and activates behind the convolution."""
    input, weight, bias, residual, activation, slope, *params = args
    output = _run(_OPERATORS[0], cls, (input, weight, bias, *params))
    if residual is not None:
        check_residual(residual, output.shape)
        output = output + residual
    return ACTIVATIONS[activation](output, slope)


def _conv_transpose2d_rule(cls: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return _conv_transpose2d(*args, **(kwargs or {}))


def _register(cls: type) -> None:
    for operator in _OPERATORS:
        torch.library.register_torch_dispatch(f"convx::{operator.name}", cls, _rule(operator))
    torch.library.register_torch_dispatch("convx::conv2d", cls, _conv2d_rule)
    torch.library.register_torch_dispatch("convx::conv2d_backward", cls, _conv2d_backward_rule)
    torch.library.register_torch_dispatch("convx::_conv2d_fused", cls, _fused_rule)
    torch.library.register_torch_dispatch("convx::conv2d_act", cls, _conv2d_act_rule)
    torch.library.register_torch_dispatch("convx::conv_transpose2d", cls, _conv_transpose2d_rule)


after_import("torch.distributed.tensor", lambda module: _register(module.DTensor))
