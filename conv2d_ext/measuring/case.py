"""One convolution that is measured: a direction, a precision and a layout of a shape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _ops
from .._arguments import ConvParams
from .._fused import ACTIVATIONS
from .._precision import dtype_of, precision_argument
from .._shape import (
    DIRECTION_NAMES,
    LAYOUT_NAMES,
    PASS_NAMES,
    PASSES,
    TRAINING_STEP,
    Shape,
    passes_of,
)
from .timing import Timer, autotuned, matmul_tf32

SLOPE = 0.01  # of leaky_relu

# Those that models compute in place.
ACTIVATIONS_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": partial(F.relu, inplace=True),
    "relu6": partial(F.relu6, inplace=True),
    "leaky_relu": partial(F.leaky_relu, negative_slope=SLOPE, inplace=True),
    "silu": partial(F.silu, inplace=True),
    "hardswish": partial(F.hardswish, inplace=True),
    "hardsigmoid": partial(F.hardsigmoid, inplace=True),
    "mish": partial(F.mish, inplace=True),
}

# A pass has one result. A training step has the output, the input gradient, the weight gradient
# and, with a bias, the bias gradient.
Results = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A direction of a shape, to be measured. `engine` computes every pass; "auto" is the planner's
    choice."""

    shape: Shape
    direction: str
    precision: str
    layout: str
    engine: str = "auto"
    bias: bool = False  # added in the forward pass; a training step computes its gradient, too
    # Of a forward pass alone.
    activation: str = "none"
    residual: bool = False

    def __str__(self) -> str:
        name = self.shape.name or self.shape.text
        words = DIRECTION_NAMES[self.direction], self.precision, LAYOUT_NAMES[self.layout]
        return " ".join((name, *words, *epilogue_words(self.residual, self.activation)))

    @property
    def passes(self) -> tuple[str, ...]:
        return passes_of(self.direction)

    @property
    def has_bias(self) -> bool:
        return self.bias and "fwd" in self.passes

    @property
    def is_fused(self) -> bool:
        """Whether the call does more than a convolution and its bias."""
        return self.residual or self.activation != "none"


def epilogue_words(residual: bool, activation: str) -> list[str]:
    """What follows a convolution, as in ["+residual", "+relu"]."""
    return ["+residual"] * residual + [f"+{activation}"] * (activation != "none")


class Operands:
    """Random input, weight and output gradient of a case, and the calls that are timed."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        s = case.shape
        dtype = dtype_of(case.precision)
        channels_last = case.layout == "nhwc"
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

        def random(*size: int) -> Tensor:
            values = torch.randn(size, device=device, dtype=dtype)
            return values.contiguous(memory_format=self.memory_format)

        self.x = random(s.N, s.C, s.H, s.W)
        self.w = random(s.K, s.C // s.groups, s.R, s.S)
        self.g = random(s.N, s.K, s.P, s.Q)
        self.b = torch.randn(s.K, device=device, dtype=dtype) if case.has_bias else None
        self.r = random(s.N, s.K, s.P, s.Q) if case.residual else None
        precision = precision_argument(case.precision)
        self.params = ConvParams(*s.stride, *s.pad, *s.dilation, s.groups, precision, case.engine)
        self.engines = (case.engine,) * len(case.passes)

    def by_engine(self, engine: str) -> Operands:
        """A copy with the same tensors that computes with another engine, or with one per pass."""
        other = copy(self)
        other.engines = split_engines(engine, self.case.passes)
        return other

    def ours(self) -> Results:
        """Computes the case with convx; a training step makes the calls that autograd makes."""
        if self.case.is_fused:
            params = self.params._replace(algorithm=self.engines[0])
            rest = self.case.activation, SLOPE, *params
            return _ops.fused(self.x, self.w, self.b, self.r, *rest)
        if self.case.direction != TRAINING_STEP:
            return self._run(self.case.direction, self.engines[0])
        s, params = self.case.shape, self.params
        lists = [list(pair) for pair in (s.stride, s.pad, s.dilation)]
        keywords = {"precision": params.precision, "algorithm": self.engines[0]}
        output = _ops.conv2d(self.x, self.w, self.b, *lists, s.groups, **keywords)
        gradients = [self._run(*each) for each in zip(PASSES[1:], self.engines[1:], strict=True)]
        if self.b is not None:
            gradients.append(_ops.bias_grad(self.g))
        return output, *gradients

    def _run(self, direction: str, engine: str) -> Tensor:
        last = self.case.layout == "nhwc"
        params = self.params._replace(algorithm=engine)
        return _ops.run(PASS_NAMES[direction], self.x, self.w, self.b, self.g, last, params)

    def unfused(self) -> Results:
        """Computes the case with convx's convolution, and PyTorch's operators behind it."""
        return finish(self.case, self._run("fwd", self.engines[0]), self.r)

    def theirs(self) -> Results:
        return torch_convolution(self.case, self.x, self.w, self.b, self.g, self.r)


def finish(case: Case, output: Tensor, residual: Tensor | None) -> Tensor:
    """Adds the residual and activates with PyTorch's operators, in place where it has them."""
    if residual is not None:
        output = output.add_(residual)
    if case.activation in ACTIVATIONS_IN_PLACE:
        return ACTIVATIONS_IN_PLACE[case.activation](output)
    return ACTIVATIONS[case.activation](output, SLOPE)


def torch_convolution(
    case: Case, x: Tensor, w: Tensor, b: Tensor | None, g: Tensor, r: Tensor | None = None
) -> Results:
    """Computes the case with PyTorch. r is the residual."""
    s = case.shape
    padding = s.symmetric_padding
    if padding is None:  # PyTorch has to pad a copy first; its time includes that
        top, bottom, left, right = s.pad
        x, padding = F.pad(x, (left, right, top, bottom)), (0, 0)
    results = []
    if "fwd" in case.passes:
        output = F.conv2d(x, w, b, s.stride, padding, s.dilation, s.groups)
        results.append(finish(case, output, r))
    training = case.direction == TRAINING_STEP
    mask = ["dgrad" in case.passes, "wgrad" in case.passes, training and b is not None]
    if any(mask):
        sizes = [s.K] if mask[2] else None
        numbers = s.stride, padding, s.dilation, False, (0, 0), s.groups
        gradients = list(torch.ops.aten.convolution_backward(g, x, w, sizes, *numbers, mask))
        if mask[0] and s.symmetric_padding is None:
            top, left = s.pad[0], s.pad[2]
            gradients[0] = gradients[0][:, :, top : top + s.H, left : left + s.W]
        results += [each for each, wanted in zip(gradients, mask, strict=True) if wanted]
    return tuple(results) if training else results[0]


@contextlib.contextmanager
def torch_precision(precision: str) -> Iterator[None]:
    """Autotunes PyTorch's convolutions, and lets it round to TF32 only for the precision "tf32"."""
    allowed = precision == "tf32"
    with matmul_tf32(allowed), autotuned(allow_tf32=allowed):
        yield


def time_case(case: Case, device: torch.device, seconds: float) -> tuple[float, float]:
    """Milliseconds of one pass on random numbers, ours and PyTorch's."""
    operands = Operands(case, device)
    timer = Timer(device, budget_s=seconds)
    with torch.no_grad(), torch_precision(case.precision):
        ours, theirs = timer.medians_ms([operands.ours, operands.theirs])
    return ours, theirs


# Milliseconds of one pass of a convolution, with convx and with PyTorch.
CaseTimes = Callable[[Case, torch.device], tuple[float, float]]


def join_engines(engines: Sequence[str]) -> str:
    """One text for the engines of a case's passes: a single name if all are the same."""
    return engines[0] if len(set(engines)) == 1 else "+".join(engines)


def split_engines(engine: str, passes: Sequence[str]) -> tuple[str, ...]:
    """The engine of each pass, from the text of join_engines."""
    names = tuple(engine.split("+"))
    return names if len(names) == len(passes) else names * len(passes)
