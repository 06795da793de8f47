"""FLOP formulas, so that torch.utils.flop_counter counts convx as it counts F.conv2d."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import Any

import torch

from . import _ops  # noqa: F401  (defines the operators)
from ._after_import import after_import


def _count(output: Sequence[int], weight: Sequence[int]) -> int:
    """output [N][K][P][Q], or [K][P][Q] without a batch, and weight [K][C/groups][R][S]"""
    _, c, r, s = weight
    return 2 * prod(output) * c * r * s


def _forward(
    input: Sequence[int], weight: Sequence[int], *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    return _count(out_shape, weight)


def _input_grad(
    grad_output: Sequence[int], weight: Sequence[int], *args: Any, **kwargs: Any
) -> int:
    return _count(grad_output, weight)


def _weight_grad(
    grad_output: Sequence[int], input: Sequence[int], *args: Any, out_shape: Any, **kwargs: Any
) -> int:
    return _count(grad_output, out_shape)


def _backward(
    grad_output: Sequence[int], input: Any, weight: Sequence[int], *args: Any, **kwargs: Any
) -> int:
    *_, output_mask = args
    return _count(grad_output, weight) * (int(output_mask[0]) + int(output_mask[1]))


def _register(counter: ModuleType) -> None:
    convx = torch.ops.convx
    for operators, formula in (
        ([convx._conv2d, convx._conv2d_fused, convx.conv2d, convx.conv2d_act], _forward),
        ([convx._conv2d_input_grad], _input_grad),
        ([convx._conv2d_weight_grad], _weight_grad),
        ([convx.conv2d_backward], _backward),
    ):
        counter.register_flop_formula(operators)(formula)


after_import("torch.utils.flop_counter", _register)
