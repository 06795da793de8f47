"""Fake kernels: sizes, strides and dtype of every result, without computing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _ops  # noqa: F401  (defines the operators)
from ._arguments import ConvParams, parse_lists
from ._checks import (
    check_activation,
    check_backward,
    check_bias,
    check_grad_output,
    check_output_size,
    check_params,
    check_ranks,
    check_residual,
    check_tensors,
)
from ._layout import is_channels_last, new_dense


def _output(input: Tensor, weight: Tensor, bias: Tensor | None, p: ConvParams) -> Tensor:
    check_tensors(input=input, weight=weight, bias=bias)
    size = check_output_size(input.shape, weight.shape, p)
    check_bias(bias, weight.shape[0])
    # An empty batch is contiguous for every memory format of the weight, as in PyTorch.
    channels_last = is_channels_last(input) or (is_channels_last(weight) and size[0] != 0)
    return new_dense(input, size, channels_last)


@torch.library.register_fake("convx::_conv2d")
def _(input: Tensor, weight: Tensor, bias: Tensor | None, *params: object) -> Tensor:
    return _output(input, weight, bias, ConvParams(*params))  # type: ignore[arg-type]


def _fused_output(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    p: ConvParams,
) -> Tensor:
    check_activation(activation)
    output = _output(input, weight, bias, p)
    if residual is not None:
        check_tensors(input=input, residual=residual)
        check_residual(residual, output.shape)
    return output


@torch.library.register_fake("convx::_conv2d_fused")
def _(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    negative_slope: float,
    *params: object,
) -> Tensor:
    return _fused_output(input, weight, bias, residual, activation, ConvParams(*params))  # type: ignore[arg-type]


@torch.library.register_fake("convx::conv2d_act")
def _(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    residual: Tensor | None = None,
    activation: str = "none",
    negative_slope: float = 0.01,
    **words: Any,
) -> Tensor:
    p = parse_lists(*args, **words)
    if input.dim() != 3:
        return _fused_output(input, weight, bias, residual, activation, p)
    if residual is not None:
        residual = residual.unsqueeze(0)
    return _fused_output(input.unsqueeze(0), weight, bias, residual, activation, p).squeeze(0)


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
    check_tensors(grad_output=grad_output, weight=weight)
    size = [grad_output.shape[0], weight.shape[1] * p.groups, height, width]
    check_grad_output(grad_output, check_output_size(size, weight.shape, p))
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
    check_tensors(grad_output=grad_output, input=input)
    check_params(p)  # before groups divides anything
    size = [grad_output.shape[1], input.shape[1] // p.groups, kernel_h, kernel_w]
    check_grad_output(grad_output, check_output_size(input.shape, size, p))
    return new_dense(grad_output, size, channels_last)


@torch.library.register_fake("convx::_conv2d_bias_grad")
def _(grad_output: Tensor) -> Tensor:
    check_tensors(grad_output=grad_output)
    return grad_output.new_empty([grad_output.shape[1]])


@torch.library.register_fake("convx::conv2d")
def _(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    p = parse_lists(*args, **kwargs)
    if input.dim() == 3:
        return _output(input.unsqueeze(0), weight, bias, p).squeeze(0)
    return _output(input, weight, bias, p)


@torch.library.register_fake("convx::conv2d_backward")
def _(
    grad_output: Tensor, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    *lists, output_mask = args
    return _gradients(grad_output, input, weight, output_mask, parse_lists(*lists, **kwargs))


@torch.library.register_fake("convx::_conv2d_gradients")
def _(
    grad_output: Tensor, input: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return _gradients(grad_output, input, weight, rest[:3], ConvParams(*rest[3:]))


def _gradients(
    grad_output: Tensor, input: Tensor, weight: Tensor, output_mask: Sequence[bool], p: ConvParams
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    check_ranks(grad_output, input)
    has_batch = input.dim() != 3
    if not has_batch:
        grad_output, input = grad_output.unsqueeze(0), input.unsqueeze(0)
    check_backward(grad_output, input, weight, p)
    grad_input = new_dense(grad_output, list(input.shape), is_channels_last(input))
    grad_input = grad_input if has_batch else grad_input.squeeze(0)
    grad_weight = new_dense(grad_output, list(weight.shape), is_channels_last(weight))
    grad_bias = grad_output.new_empty([weight.shape[0]])
    return (
        grad_input if output_mask[0] else None,
        grad_weight if output_mask[1] else None,
        grad_bias if output_mask[2] else None,
    )
