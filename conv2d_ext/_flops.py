"""FLOP formulas, so that torch.utils.flop_counter counts convx as it counts F.conv2d."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from . import _ops  # noqa: F401  (defines the operators)


def _count(output: Sequence[int], weight: Sequence[int]) -> int:
    """output [N][K][P][Q], or [K][P][Q] without a batch, and weight [K][C/groups][R][S]"""
    _, c, r, s = weight
    return 2 * prod(output) * c * r * s


@register_flop_formula([torch.ops.convx._conv2d, torch.ops.convx.conv2d])
def _forward(
    input: Sequence[int], weight: Sequence[int], *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    return _count(out_shape, weight)


@register_flop_formula(torch.ops.convx._conv2d_input_grad)
def _input_grad(
    grad_output: Sequence[int], weight: Sequence[int], *args: Any, **kwargs: Any
) -> int:
    return _count(grad_output, weight)


@register_flop_formula(torch.ops.convx._conv2d_weight_grad)
def _weight_grad(
    grad_output: Sequence[int], input: Sequence[int], *args: Any, out_shape: Any, **kwargs: Any
) -> int:
    return _count(grad_output, out_shape)


@register_flop_formula(torch.ops.convx.conv2d_backward)
def _backward(
    grad_output: Sequence[int],
    input: Sequence[int],
    weight: Sequence[int],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    output_mask: Sequence[bool],
    *args: Any,
    **kwargs: Any,
) -> int:
    return _count(grad_output, weight) * (int(output_mask[0]) + int(output_mask[1]))
