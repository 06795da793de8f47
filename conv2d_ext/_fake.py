"""Fake kernels: sizes, strides and dtype of every result, without computing it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import _ops  # noqa: F401  (defines the operators)
from ._arguments import ConvParams, output_hw, parse_lists
from ._layout import is_channels_last, new_dense


def _check_tensors(**tensors: Tensor | None) -> None:
    first_name, first = next(iter(tensors.items()))
    assert first is not None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        rank = 1 if name == "bias" else 4
        torch._check(
            tensor.dim() == rank,
            lambda name=name, tensor=tensor, rank=rank: (
                f"convx.conv2d: expected {name} to have {rank} dimensions, "
                f"but got {name} of size {list(tensor.shape)}"
            ),
        )
        torch._check(
            tensor.dtype == first.dtype,
            lambda name=name, tensor=tensor: (
                f"convx.conv2d: expected {name} to have the dtype of {first_name} "
                f"({first.dtype}), but got {name}.dtype={tensor.dtype}"
            ),
        )


def _output_size(input: Tensor, weight: Tensor, p: ConvParams) -> list[int]:
    torch._check(
        input.shape[1] == weight.shape[1] * p.groups,
        lambda: (
            f"convx.conv2d: expected input to have weight.size(1)={weight.shape[1]} times "
            f"groups={p.groups} channels, but got input.size(1)={input.shape[1]}"
        ),
    )
    out_h, out_w = output_hw(input.shape[2], input.shape[3], weight.shape[2], weight.shape[3], p)
    for extent in (out_h, out_w):
        torch._check(
            extent >= 1,
            lambda: (
                "convx.conv2d: kernel size can't be greater than the padded input: input "
                f"{list(input.shape)}, weight {list(weight.shape)}, {p}"
            ),
        )
    return [input.shape[0], weight.shape[0], out_h, out_w]


@torch.library.register_fake("convx::_conv2d")
def _(input: Tensor, weight: Tensor, bias: Tensor | None, *params: object) -> Tensor:
    p = ConvParams(*params)  # type: ignore[arg-type]
    _check_tensors(input=input, weight=weight, bias=bias)
    channels_last = is_channels_last(input) or is_channels_last(weight)
    return new_dense(input, _output_size(input, weight, p), channels_last)


@torch.library.register_fake("convx::_conv2d_input_grad")
def _(
    grad_output: Tensor,
    weight: Tensor,
    height: int,
    width: int,
    channels_last: bool,
    *params: object,
) -> Tensor:
    p = ConvParams(*params)  # type: ignore[arg-type]
    _check_tensors(grad_output=grad_output, weight=weight)
    size = [grad_output.shape[0], weight.shape[1] * p.groups, height, width]
    return new_dense(grad_output, size, channels_last)


@torch.library.register_fake("convx::_conv2d_weight_grad")
def _(
    grad_output: Tensor,
    input: Tensor,
    kernel_h: int,
    kernel_w: int,
    channels_last: bool,
    *params: object,
) -> Tensor:
    p = ConvParams(*params)  # type: ignore[arg-type]
    _check_tensors(grad_output=grad_output, input=input)
    size = [grad_output.shape[1], input.shape[1] // p.groups, kernel_h, kernel_w]
    return new_dense(grad_output, size, channels_last)


@torch.library.register_fake("convx::_conv2d_bias_grad")
def _(grad_output: Tensor) -> Tensor:
    _check_tensors(grad_output=grad_output)
    return grad_output.new_empty([grad_output.shape[1]])


@torch.library.register_fake("convx::conv2d")
def _(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    precision: str = "ieee",
    algorithm: str = "auto",
) -> Tensor:
    p = parse_lists(stride, padding, dilation, groups, precision, algorithm)
    _check_tensors(input=input, weight=weight, bias=bias)
    channels_last = is_channels_last(input) or is_channels_last(weight)
    return new_dense(input, _output_size(input, weight, p), channels_last)


@torch.library.register_fake("convx::conv2d_backward")
def _(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    *,
    precision: str = "ieee",
    algorithm: str = "auto",
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    _check_tensors(grad_output=grad_output, input=input, weight=weight)
    grad_input = new_dense(grad_output, list(input.shape), is_channels_last(input))
    grad_weight = new_dense(grad_output, list(weight.shape), is_channels_last(weight))
    grad_bias = grad_output.new_empty([weight.shape[0]])
    return (
        grad_input if output_mask[0] else None,
        grad_weight if output_mask[1] else None,
        grad_bias if output_mask[2] else None,
    )
