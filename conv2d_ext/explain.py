"""explain: which engine a convolution gets, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from typing import Any

import torch
from torch import Tensor

from . import _ops
from ._arguments import IntOrPair, PaddingLike, parse_padding, parse_pair
from ._checks import check_number_types, check_word_types
from ._precision import default_precision, dtype_of, precision_argument, precision_name
from ._shape import PASS_NAMES, SHORT_NAMES, Shape
from ._text import html_table, mebibytes_text, time_text
from ._values import tuples
from .measuring.case import Case
from .measuring.roofline import least_seconds, measure_ceilings


@dataclass(frozen=True)
class Candidate:
    """One engine's answer: a refusal, or its predicted costs."""

    name: str
    refusal: str = ""
    by_name_only: bool = False  # runs only where algorithm= asks for it
    predicted_us: float = 0.0
    workspace_bytes: int = 0
    split: int = 1
    halves: bool = False  # float32 operands become scaled fp16 where their values allow it
    separate_pass: bool = False  # residual and activation are computed by a pass that follows
    tile: tuple[int, ...] = ()
    geometry: str = ""  # a line on how the engine divides the work: its tile, stages, split-K
    variants: tuple[str, ...] = ()  # other plans of the engine, which tune() tries


@dataclass(frozen=True)
class Floor:
    """The least time of a problem on this machine, from rates measured on it."""

    flops_us: float  # the arithmetic, at the highest rate of a matrix product
    bytes_us: float  # the fewest bytes, at the highest rates of the memory and of its cache

    @property
    def us(self) -> float:
        return max(self.flops_us, self.bytes_us)

    @property
    def bound(self) -> str:
        return "arithmetic" if self.flops_us >= self.bytes_us else "memory"


@dataclass(frozen=True)
class Explanation:
    """How a convolution would be computed. Prints as text, and as a table in a notebook."""

    problem: str
    direction: str
    precision: str
    engine: str
    flops: float
    bytes: float
    candidates: tuple[Candidate, ...]
    error: str = ""
    floor: Floor | None = None
    variant: str = ""  # of the engine, where algorithm= or a measurement asked for one
    tuned: bool = False  # tune() measured it, or load_tuned() took it from a file

    @property
    def algorithm(self) -> str:
        """The engine and variant that run, as algorithm= would name them."""
        return f"{self.engine}:{self.variant}" if self.variant else self.engine

    @property
    def ranking(self) -> tuple[Candidate, ...]:
        """The engine that runs it, then the others from fast to slow, then the refusing ones."""

        def place(candidate: Candidate) -> tuple[bool, bool, float]:
            chosen = candidate.name == self.engine
            return not chosen, bool(candidate.refusal), candidate.predicted_us

        return tuple(sorted(self.candidates, key=place))

    def __str__(self) -> str:
        lines = [self._headline(), self._counts()]
        width = max((len(c.name) for c in self.candidates), default=0)
        for c in self.ranking:
            mark = "->" if c.name == self.engine else "  "
            lines.append(f"{mark} {c.name:{width}}  {self._answer(c)}")
        return "\n".join([*lines, self._verdict()])

    def _repr_html_(self) -> str:
        header = ["", "engine", "predicted", "workspace", "notes"]
        rows, styles = [], []
        for c in self.ranking:
            chosen = c.name == self.engine
            styles.append("font-weight: bold" if chosen else "opacity: 0.6" if c.refusal else "")
            if c.refusal:
                rows.append(["", c.name, "-", "-", f"refuses: {c.refusal}"])
                continue
            costs = [time_text(c.predicted_us), mebibytes_text(c.workspace_bytes)]
            mark = "\u2192" if chosen else ""
            rows.append([mark, c.name, *costs, ", ".join(self._notes(c))])
        head = f"<code>{escape(self._headline())}</code><br>{escape(self._counts())}"
        return f"{head}{html_table(header, rows, styles)}{escape(self._verdict())}"

    def _headline(self) -> str:
        return f"{self.problem}, {self.direction}, {self.precision}"

    def _counts(self) -> str:
        text = f"{self.flops / 1e9:.4g} GFLOP, at least {self.bytes / 1e6:.4g} MB moved"
        if self.floor is not None:
            text += f", floor {time_text(self.floor.us)} ({self.floor.bound})"
        return text

    def _answer(self, c: Candidate) -> str:
        if c.refusal:
            return f"refuses: {c.refusal}"
        time, workspace = time_text(c.predicted_us), mebibytes_text(c.workspace_bytes)
        return ", ".join([f"predicted {time}", f"workspace {workspace}", *self._notes(c)])

    def _notes(self, c: Candidate) -> list[str]:
        notes = [c.geometry] * bool(c.geometry) + ["only by name"] * c.by_name_only
        return notes + ["residual and activation in a pass of their own"] * c.separate_pass

    def _verdict(self) -> str:
        if self.error:
            return f"error: {self.error}"
        return f"{self.algorithm} runs it: {self._why()}"

    def _why(self) -> str:
        if self.tuned:
            return "measured to be the fastest"
        chosen = next(c for c in self.candidates if c.name == self.engine)
        able = [c for c in self.candidates if not c.refusal and not c.by_name_only]
        if (
            self.variant
            or chosen.by_name_only
            or any(c.predicted_us < chosen.predicted_us for c in able)
        ):
            return "algorithm= asked for it"
        return "the smallest predicted time" if len(able) > 1 else "no other engine can"


def explain(
    input: Tensor | Sequence[int],
    weight: Tensor | Sequence[int],
    bias: object = None,
    stride: IntOrPair = 1,
    padding: PaddingLike = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    *,
    precision: str | None = None,
    algorithm: str = "auto",
    direction: str = "forward",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    channels_last: bool = False,
    floor: bool = False,
    activation: str | None = None,
    residual: object = None,
) -> Explanation:
    """Say which engine a convolution gets, without computing it.

    Takes the arguments of :func:`conv2d_ext.conv2d`; input and weight may also be given by their
    sizes, then with ``dtype`` (default float32), ``device`` (default "cpu") and ``channels_last``.
    Of ``bias`` and ``residual`` it matters only whether they are None.
    ``direction`` is "forward", "input_grad" or "weight_grad". ``floor=True`` adds the time that
    nothing can beat, for which it measures the device for a moment, once per process.
    """
    check_number_types(stride, padding, dilation, groups)
    check_word_types(precision, algorithm)
    x = _as_tensor(input, dtype, channels_last)
    w = _as_tensor(weight, dtype, channels_last)
    where = torch.device(device or (input.device if isinstance(input, Tensor) else "cpu"))
    if x.dim() == 3:
        x = x.unsqueeze(0)
    stride_hw = parse_pair("stride", stride)
    dilation_hw = parse_pair("dilation", dilation)
    kernel = (w.shape[-2], w.shape[-1]) if w.dim() >= 2 else (1, 1)
    pad = parse_padding(padding, kernel, stride_hw, dilation_hw)
    if precision is None:
        precision = default_precision(where)
    arguments = (
        direction,
        str(x.dtype).removeprefix("torch."),
        list(x.shape),
        list(x.stride()),
        list(w.shape),
        list(w.stride()),
        list[int](),
        bias is not None,
        list(stride_hw),
        list(pad),
        list(dilation_hw),
        groups,
        precision,
        algorithm,
        where.index or 0,
        residual is not None,
        activation or "none",
    )
    answer = json.loads(_explainer(where)(*arguments))
    candidates = tuple(Candidate(**tuples(row)) for row in answer["candidates"])
    explanation = Explanation(**{**answer, "candidates": candidates})
    if not floor:
        return explanation
    name = precision_name(x.dtype, precision)
    shape = Shape.parse(explanation.problem)
    seconds = least_seconds(
        shape, SHORT_NAMES[direction], name, _measured_ceilings(where, name), residual is not None
    )
    return replace(explanation, floor=Floor(*(time * 1e6 for time in seconds)))


def explain_shape(shape: Shape, bias: bool = False, **options: Any) -> Explanation:
    """explain() for a shape; options are its keywords."""
    s = shape
    weight = (s.K, s.C // s.groups, s.R, s.S)
    return explain(
        (s.N, s.C, s.H, s.W), weight, bias or None, s.stride, s.pad, s.dilation, s.groups, **options
    )


def explain_case(case: Case, device: torch.device) -> Explanation:
    """explain() for a case of one pass."""
    return explain_shape(
        case.shape,
        case.has_bias,
        precision=precision_argument(case.precision),
        direction=PASS_NAMES[case.direction],
        dtype=dtype_of(case.precision),
        device=device,
        channels_last=case.layout == "nhwc",
        activation=case.activation,
        residual=case.residual or None,
    )


@cache
def _measured_ceilings(device: torch.device, precision: str) -> dict[str, float]:
    return measure_ceilings(device, [precision], budget_s=0.1)


def _as_tensor(
    operand: Tensor | Sequence[int], dtype: torch.dtype | None, channels_last: bool
) -> Tensor:
    if isinstance(operand, Tensor):
        return operand
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(
        tuple(operand), dtype=dtype or torch.float32, device="meta", memory_format=memory_format
    )


def _explainer(device: torch.device) -> torch._ops.OpOverload:
    if device.type == "cpu":
        return torch.ops.convx._explain_cpu.default
    if device.type == "cuda":
        if _ops.why_no_cuda() is not None:
            raise RuntimeError(f"convx.explain: there is no CUDA half: {_ops.why_no_cuda()}")
        return torch.ops.convx._explain_cuda.default
    raise RuntimeError(f"convx.explain: no engines compute on device='{device}', only cpu and cuda")
