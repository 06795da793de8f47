"""One row of the benchmark: a shape, a direction, a precision and a layout, ours and PyTorch's."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _ops
from .._arguments import ConvParams
from ..explain import Explanation, explain
from .reference import sampled_error
from .shapes import Shape
from .timing import Timer

DIRECTIONS = ("fwd", "dgrad", "wgrad")
PRECISIONS = ("ieee", "tf32", "bf16", "fp16")
LAYOUTS = ("nchw", "nhwc")

# Relative errors that only a wrong result exceeds.
TOLERANCES = {"ieee": 2e-5, "tf32": 3e-3, "bf16": 2e-2, "fp16": 3e-3}

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PASS_NAMES = {"fwd": "forward", "dgrad": "input_grad", "wgrad": "weight_grad"}


@dataclass(frozen=True)
class Case:
    """What is measured; engine is how convx computes it, "auto" for the heuristic's choice."""

    shape: Shape
    direction: str
    precision: str
    layout: str
    engine: str = "auto"


@dataclass
class Row:
    """What was measured; ratio is PyTorch's time over ours. On a GPU PyTorch's is cuDNN's."""

    shape: str
    text: str
    direction: str
    precision: str
    layout: str
    engine: str
    ours_ms: float
    cudnn_ms: float
    ratio: float
    floor_ms: float
    tflops: float
    rel_error: float
    cudnn_rel_error: float
    chosen: bool  # the heuristic would take this engine


class Operands:
    """Random input, weight and output gradient of a case, and the calls that are timed."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        s = case.shape
        dtype = _DTYPES.get(case.precision, torch.float32)
        channels_last = case.layout == "nhwc"
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

        def random(*size: int) -> Tensor:
            values = torch.randn(size, device=device, dtype=dtype)
            return values.contiguous(memory_format=self.memory_format)

        self.x = random(s.N, s.C, s.H, s.W)
        self.w = random(s.K, s.C // s.groups, s.R, s.S)
        self.g = random(s.N, s.K, s.P, s.Q)
        precision = "tf32" if case.precision == "tf32" else "ieee"
        self.params = ConvParams(*s.stride, *s.pad, *s.dilation, s.groups, precision, case.engine)

    def use_engine(self, engine: str) -> None:
        self.params = self.params._replace(algorithm=engine)

    def ours(self) -> Tensor:
        s, nhwc = self.case.shape, self.case.layout == "nhwc"
        if self.case.direction == "fwd":
            return _ops.forward(self.x, self.w, None, *self.params)
        if self.case.direction == "dgrad":
            return _ops.input_grad(self.g, self.w, s.H, s.W, nhwc, *self.params)
        return _ops.weight_grad(self.g, self.x, s.R, s.S, nhwc, *self.params)

    def theirs(self) -> Tensor:
        s = self.case.shape
        padding = s.symmetric_padding
        x = self.x
        if padding is None:  # PyTorch has to pad a copy first; its time includes that
            top, bottom, left, right = s.pad
            x, padding = F.pad(x, (left, right, top, bottom)), (0, 0)
        if self.case.direction == "fwd":
            return F.conv2d(x, self.w, None, s.stride, padding, s.dilation, s.groups)
        mask = [self.case.direction == "dgrad", self.case.direction == "wgrad", False]
        gradients = torch.ops.aten.convolution_backward(
            self.g, x, self.w, None, s.stride, padding, s.dilation, False, (0, 0), s.groups, mask
        )
        if not mask[0]:
            return gradients[1]
        top, left = s.pad[0], s.pad[2]
        whole = s.symmetric_padding is not None
        return gradients[0] if whole else gradients[0][:, :, top : top + s.H, left : left + s.W]


def torch_precision(precision: str) -> contextlib.AbstractContextManager[None]:
    """PyTorch autotuned, and in the precision that is compared."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=precision == "tf32")


def explain_shape(shape: Shape, **options: Any) -> Explanation:
    """explain() for a shape; options are its keywords."""
    s = shape
    weight = (s.K, s.C // s.groups, s.R, s.S)
    return explain(
        (s.N, s.C, s.H, s.W), weight, None, s.stride, s.pad, s.dilation, s.groups, **options
    )


def chosen_engine(case: Case, device: torch.device) -> str:
    return explain_shape(
        case.shape,
        precision="tf32" if case.precision == "tf32" else "ieee",
        direction=_PASS_NAMES[case.direction],
        dtype=_DTYPES.get(case.precision, torch.float32),
        device=device,
        channels_last=case.layout == "nhwc",
    ).engine


def measure(
    case: Case, engines: Sequence[str], timer: Timer, ceilings: dict[str, float]
) -> list[Row]:
    """A row per engine; PyTorch is measured once for all of them."""
    s = case.shape
    operands = Operands(case, timer.device)
    tensors = operands.x, operands.w, operands.g
    bytes_moved = s.elements * operands.x.element_size()
    floor_s = max(s.flops / ceilings[case.precision], bytes_moved / ceilings["bytes_per_s"])
    choice = chosen_engine(case, timer.device)
    rows = []
    with torch.no_grad(), torch_precision(case.precision):
        theirs_error = sampled_error(case.direction, s, operands.theirs(), *tensors)
        theirs_ms = timer.median_ms(operands.theirs)
        for engine in engines:
            operands.use_engine(engine)
            error = sampled_error(case.direction, s, operands.ours(), *tensors)
            ours_ms = timer.median_ms(operands.ours)
            name = choice if engine == "auto" else engine
            rows.append(
                Row(
                    shape=s.name or s.text,
                    text=s.text,
                    direction=case.direction,
                    precision=case.precision,
                    layout=case.layout,
                    engine=name,
                    ours_ms=ours_ms,
                    cudnn_ms=theirs_ms,
                    ratio=theirs_ms / ours_ms,
                    floor_ms=floor_s * 1e3,
                    tflops=s.flops / ours_ms / 1e9,
                    rel_error=error,
                    cudnn_rel_error=theirs_error,
                    chosen=name == choice,
                )
            )
    return rows
