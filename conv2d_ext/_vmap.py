"""vmap: the mapped axis becomes more images, or, where filters are mapped, more groups.

Rules for the private operators only: the public ones reach torch.func as autograd.Functions
(see _autograd.py), whose vmap runs these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _ops
from ._arguments import ConvParams


def _to_front(tensor: Tensor, axis: int | None, batch: int) -> Tensor:
    """The tensor with the mapped axis first; one that is not mapped is broadcast along it."""
    if axis is None:
        return tensor.expand(batch, *tensor.shape)
    return tensor.movedim(axis, 0)


def _into_images(tensor: Tensor) -> Tensor:
    """[B][N][...] -> [B*N][...]"""
    return tensor.flatten(0, 1)


def _into_channels(tensor: Tensor) -> Tensor:
    """[B][N][C][...] -> [N][B*C][...]: mapped entry b owns a block of C channels."""
    return tensor.movedim(0, 1).flatten(1, 2)


def _from_channels(tensor: Tensor, batch: int) -> Tensor:
    """[N][B*C][...] -> [B][N][C][...]"""
    return tensor.unflatten(1, (batch, -1)).movedim(1, 0)


def _widen(params: Sequence[Any], batch: int) -> ConvParams:
    p = ConvParams(*params)
    return p._replace(groups=p.groups * batch)


def _forward(
    info: Any,
    in_dims: tuple[Any, ...],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *params: Any,
) -> tuple[Tensor, int]:
    batch = info.batch_size
    in_input, in_weight, in_bias = in_dims[:3]
    if in_weight is not None:
        x = _into_channels(_to_front(input, in_input, batch))
        w = _into_images(_to_front(weight, in_weight, batch))
        b = None if bias is None else _to_front(bias, in_bias, batch).flatten()
        return _from_channels(_ops.forward(x, w, b, *_widen(params, batch)), batch), 0
    # An input without channels has an output without channels, to which no bias is added.
    mapped_bias = bias is not None and in_bias is not None and weight.shape[1] != 0
    if in_input is None:  # only the bias is mapped
        y = _ops.forward(input, weight, None, *params).expand(batch, -1, -1, -1, -1)
    else:
        x = _into_images(_to_front(input, in_input, batch))
        y = _ops.forward(x, weight, bias if in_bias is None else None, *params)
        y = y.unflatten(0, (batch, -1))
    if mapped_bias:
        assert bias is not None
        y = y + _to_front(bias, in_bias, batch)[:, None, :, None, None]
    return y, 0


def _input_grad(
    info: Any, in_dims: tuple[Any, ...], grad_output: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, int]:
    batch = info.batch_size
    in_grad, in_weight = in_dims[:2]
    if in_weight is None:
        g = _into_images(_to_front(grad_output, in_grad, batch))
        return _ops.input_grad(g, weight, *rest).unflatten(0, (batch, -1)), 0
    g = _into_channels(_to_front(grad_output, in_grad, batch))
    w = _into_images(_to_front(weight, in_weight, batch))
    x = _ops.input_grad(g, w, *rest[:3], *_widen(rest[3:], batch))
    return _from_channels(x, batch), 0


def _weight_grad(
    info: Any, in_dims: tuple[Any, ...], grad_output: Tensor, input: Tensor, *rest: Any
) -> tuple[Tensor, int]:
    batch = info.batch_size
    g = _into_channels(_to_front(grad_output, in_dims[0], batch))
    x = _into_channels(_to_front(input, in_dims[1], batch))
    w = _ops.weight_grad(g, x, *rest[:3], *_widen(rest[3:], batch))
    return w.unflatten(0, (batch, -1)), 0


def _bias_grad(info: Any, in_dims: tuple[Any, ...], grad_output: Tensor) -> tuple[Tensor, int]:
    batch = info.batch_size
    g = _into_channels(_to_front(grad_output, in_dims[0], batch))
    return _ops.bias_grad(g).unflatten(0, (batch, -1)), 0


torch.library.register_vmap("convx::_conv2d", _forward)
torch.library.register_vmap("convx::_conv2d_input_grad", _input_grad)
torch.library.register_vmap("convx::_conv2d_weight_grad", _weight_grad)
torch.library.register_vmap("convx::_conv2d_bias_grad", _bias_grad)
