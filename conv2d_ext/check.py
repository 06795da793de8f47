"""check: a convolution and its gradients on this machine, against float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ._precision import dtype_of, precision_argument
from ._shape import LAYOUT_NAMES, SHORT_NAMES, Shape
from ._text import Table, format_table
from .bench.accuracy import tolerance
from .explain import explain_case
from .functional import conv2d
from .measuring.case import Case

# Bytes of float64 values at a time, so that a large layer's batch need not fit into memory twice.
_CHUNK_BYTES = 256 << 20
_RESULTS = ("forward", "input_grad", "weight_grad", "bias_grad")


@dataclass(frozen=True)
class Finding:
    """One result of one convolution: how far it is from float64, and whether that is right."""

    shape: str
    precision: str
    layout: str
    direction: str
    engine: str
    rel_error: float = math.nan  # in the Frobenius norm
    worst: float = math.nan  # the largest error of an element over what rounding allows there
    failure: str = ""  # the error that was raised instead of a result

    @property
    def passed(self) -> bool:
        return not self.failure and self.worst <= 1


class _Distance:
    """Adds up how far a result is from the exact one, piece by piece."""

    def __init__(self, length: int, tf32: bool) -> None:
        self.length, self.tf32 = length, tf32
        self.error_squares = self.exact_squares = self.worst = 0.0

    def add(self, got: Tensor, want: Tensor, magnitude: Tensor) -> None:
        if got.numel() == 0:
            return
        error = (got.double() - want).abs()
        allowed = tolerance(want, magnitude, got.dtype, max(self.length, 1), self.tf32)
        # A NaN would lose every comparison, but it is the worst error.
        piece = (error / allowed).nan_to_num(nan=math.inf).max().item()
        self.worst = max(self.worst, piece)
        self.error_squares += error.square().sum().item()
        self.exact_squares += want.square().sum().item()

    @property
    def relative(self) -> float:
        if self.exact_squares == 0:
            return math.sqrt(self.error_squares)
        return math.sqrt(self.error_squares / self.exact_squares)


def check(shape: Shape, precision: str, layout: str, device: torch.device) -> list[Finding]:
    """Computes a convolution with a bias and its three gradients on random numbers, by the engines
    that a call gets, and compares every element with float64.

    `precision` and `layout` are the benchmark's words ("ieee", "tf32", "bf16", "fp16", "fp64";
    "nchw", "nhwc"). float64 is PyTorch's own convolution, some images at a time.
    """
    engines = [_engine(shape, precision, layout, direction, device) for direction in _RESULTS]
    label = shape.name or shape.text
    try:
        distances = _distances(shape, precision, layout, device)
    except RuntimeError as error:  # an engine failed or memory ran out, which is a finding, too
        reason = str(error).strip().partition("\n")[0]
        return [
            Finding(label, precision, layout, direction, engine, failure=reason)
            for direction, engine in zip(_RESULTS, engines, strict=True)
        ]
    return [
        Finding(label, precision, layout, direction, engine, found.relative, found.worst)
        for direction, engine, found in zip(_RESULTS, engines, distances, strict=True)
    ]


def _engine(shape: Shape, precision: str, layout: str, direction: str, device: torch.device) -> str:
    if direction not in SHORT_NAMES:
        return "-"  # the bias gradient is a plain sum
    case = Case(shape, SHORT_NAMES[direction], precision, layout, bias=True)
    return explain_case(case, device).engine


def _distances(
    shape: Shape, precision: str, layout: str, device: torch.device
) -> tuple[_Distance, ...]:
    s = shape
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    generator = torch.Generator(device).manual_seed(0)

    def random(*size: int) -> Tensor:
        values = torch.randn(size, generator=generator, device=device, dtype=dtype_of(precision))
        return values.contiguous(memory_format=memory_format) if len(size) == 4 else values

    x, w = random(s.N, s.C, s.H, s.W), random(s.K, s.C // s.groups, s.R, s.S)
    b, g = random(s.K), random(s.N, s.K, s.P, s.Q)
    y, *gradients = _ours(s, precision, x, w, b, g)

    tf32 = precision == "tf32"
    taps, pixels = s.R * s.S, s.N * s.P * s.Q
    forward = _Distance(s.C // s.groups * taps + 1, tf32)
    input_grad = _Distance(s.K // s.groups * taps, tf32)
    weight_grad, bias_grad = _Distance(pixels, tf32), _Distance(pixels, False)
    # Weight and bias gradients are sums over all images.
    totals = [torch.zeros_like(t, dtype=torch.float64) for t in (w, b, w, b)]
    image_bytes = 8 * max(s.C * s.H * s.W, s.K * s.P * s.Q)
    images = max(1, _CHUNK_BYTES // image_bytes)
    for first in range(0, s.N, images):
        part = slice(first, first + images)
        exact = _float64(s, x[part], w, b, g[part])
        size = _float64(s, x[part].abs(), w.abs(), b.abs(), g[part].abs())
        forward.add(y[part], exact[0], size[0])
        input_grad.add(gradients[0][part], exact[1], size[1])
        for total, piece in zip(totals, (*exact[2:], *size[2:]), strict=True):
            total += piece
    weight_grad.add(gradients[1], totals[0], totals[2])
    bias_grad.add(gradients[2], totals[1], totals[3])
    return forward, input_grad, weight_grad, bias_grad


def _ours(
    s: Shape, precision: str, x: Tensor, w: Tensor, b: Tensor, g: Tensor
) -> tuple[Tensor, ...]:
    leaves = [tensor.detach().requires_grad_() for tensor in (x, w, b)]
    asked = precision_argument(precision)
    with torch.enable_grad():
        x, w, b = leaves
        y = conv2d(x, w, b, s.stride, s.pad, s.dilation, s.groups, precision=asked)
        return (y.detach(), *torch.autograd.grad(y, leaves, g))


def _float64(s: Shape, x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """Output and gradients of input, weight and bias."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in (x, w, b)]
    top, bottom, left, right = s.pad
    with torch.enable_grad():
        padded = F.pad(leaves[0], (left, right, top, bottom))
        y = F.conv2d(padded, leaves[1], leaves[2], s.stride, 0, s.dilation, s.groups)
        return (y.detach(), *torch.autograd.grad(y, leaves, g.double()))


def format_findings(findings: Sequence[Finding]) -> Table:
    header = ["shape", "precision", "layout", "result", "engine", "error", "of allowed", ""]
    rows = [
        [
            found.shape,
            found.precision,
            LAYOUT_NAMES[found.layout],
            found.direction,
            found.engine,
            "-" if found.failure else f"{found.rel_error:.1e}",
            "-" if found.failure else f"{found.worst:.0%}",
            "PASS" if found.passed else "FAIL",
        ]
        for found in findings
    ]
    return format_table(header, rows, left=5)
