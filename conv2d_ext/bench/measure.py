"""One row of the benchmark: a shape, a direction, a precision and a layout, ours and PyTorch's.

A direction is one of the three passes, or a training step: all three, one after another.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _ops
from .._arguments import ConvParams
from .._progress import Progress
from ..explain import Explanation, explain
from ..tuning import tune
from .precisions import PRECISIONS, dtype_of, precision_argument
from .reference import worst_sampled_error
from .roofline import floor_seconds, measure_ceilings
from .shapes import DIRECTIONS, TRAINING_STEP, Shape, networks_of, passes_of
from .timing import Call, Timer, autotuned, scratch_bytes

LAYOUTS = ("nchw", "nhwc")
# What convx can be compared with besides PyTorch's own convolution, which always is.
PEERS = ("cudnn", "cublas", "inductor")

# The words that options, progress and tables use; rows keep the short ones.
LAYOUT_NAMES = {"nchw": "nchw", "nhwc": "channels_last"}
PASS_NAMES = {"fwd": "forward", "dgrad": "input_grad", "wgrad": "weight_grad"}
DIRECTION_NAMES = {**PASS_NAMES, TRAINING_STEP: "training_step"}

# One tensor of a pass; output, input gradient, weight gradient and, with a bias, bias gradient of a
# training step.
Results = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """What is measured; engine is what computes every pass, "auto" for the heuristic's choice."""

    shape: Shape
    direction: str
    precision: str
    layout: str
    engine: str = "auto"
    bias: bool = False  # added in the forward pass; a training step has its gradient, too

    def __str__(self) -> str:
        name = self.shape.name or self.shape.text
        words = DIRECTION_NAMES[self.direction], self.precision, LAYOUT_NAMES[self.layout]
        return " ".join((name, *words))

    @property
    def passes(self) -> tuple[str, ...]:
        return passes_of(self.direction)

    @property
    def has_bias(self) -> bool:
        return self.bias and "fwd" in self.passes


@dataclass
class Row:
    """What was measured; ratio is PyTorch's time over ours. On a GPU PyTorch's is cuDNN's, and on
    the CPU its own. The engine of a training step is one name, or those of its three passes with
    plus signs between them."""

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
    chosen: bool = True  # the heuristic would take this engine
    inductor_ms: float | None = None  # torch.compile's, where it was asked for
    bias: bool = False
    cublas_ms: float | None = None  # of a 1x1 layer's product, where it was asked for
    # Where ours was measured first: what is taken without, and its time.
    untuned: str | None = None
    untuned_ms: float | None = None
    # GPU memory that a call takes while it runs, beyond its operands and its result.
    workspace_bytes: int | None = None
    cudnn_workspace_bytes: int | None = None
    # The networks of networks.json that have this layer, and how often each computes it.
    networks: dict[str, int] = field(default_factory=dict)


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
        precision = precision_argument(case.precision)
        self.params = ConvParams(*s.stride, *s.pad, *s.dilation, s.groups, precision, case.engine)
        self.engines = (case.engine,) * len(case.passes)

    def by_engine(self, engine: str) -> Operands:
        """The same tensors, computed by another engine, or by one for each pass."""
        other = copy(self)
        other.engines = split_engines(engine, self.case.passes)
        return other

    def ours(self) -> Results:
        """What convx does for a case; a training step makes the calls that autograd makes."""
        if self.case.direction != TRAINING_STEP:
            return self._run(self.case.direction, self.engines[0])
        s, params = self.case.shape, self.params
        lists = [list(pair) for pair in (s.stride, s.pad, s.dilation)]
        keywords = {"precision": params.precision, "algorithm": self.engines[0]}
        output = _ops.conv2d(self.x, self.w, self.b, *lists, s.groups, **keywords)
        gradients = [
            self._run(*each) for each in zip(DIRECTIONS[1:], self.engines[1:], strict=True)
        ]
        if self.b is not None:
            gradients.append(_ops.bias_grad(self.g))
        return output, *gradients

    def _run(self, direction: str, engine: str) -> Tensor:
        last = self.case.layout == "nhwc"
        params = self.params._replace(algorithm=engine)
        return _ops.run(PASS_NAMES[direction], self.x, self.w, self.b, self.g, last, params)

    def theirs(self) -> Results:
        return torch_convolution(self.case, self.x, self.w, self.b, self.g)

    def cublas(self) -> Callable[[], Tensor] | None:
        """What PyTorch's matrix products do for a 1x1 layer's forward pass; None for others."""
        s = self.case.shape
        plain = s.stride == (1, 1) and s.pad == (0, 0, 0, 0) and s.groups == 1
        if self.case.direction != "fwd" or (s.R, s.S) != (1, 1) or not plain:
            return None
        b, w = self.b, self.w.reshape(s.K, s.C)
        if self.case.layout == "nhwc":  # [pixel][channel]
            pixels = self.x.permute(0, 2, 3, 1).reshape(-1, s.C)
            return lambda: pixels @ w.t() if b is None else torch.addmm(b, pixels, w.t())
        planes, filters = self.x.reshape(s.N, s.C, -1), w.expand(s.N, -1, -1)
        if b is None:
            return lambda: torch.bmm(filters, planes)
        column = b.reshape(1, s.K, 1)
        return lambda: torch.baddbmm(column, filters, planes)

    def inductors(self) -> Callable[[], Results] | None:
        """What torch.compile makes of it; None, with a warning, where it cannot: it may lack a
        compiler."""
        compiled = _compiled_convolution(self.case)

        def run() -> Results:
            return compiled(self.x, self.w, self.b, self.g)

        try:
            run()
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(f"no inductor time for {self.case.shape.text}: {reason}", stacklevel=2)
            return None
        return run


def torch_convolution(case: Case, x: Tensor, w: Tensor, b: Tensor | None, g: Tensor) -> Results:
    """What PyTorch does for a case."""
    s = case.shape
    padding = s.symmetric_padding
    if padding is None:  # PyTorch has to pad a copy first; its time includes that
        top, bottom, left, right = s.pad
        x, padding = F.pad(x, (left, right, top, bottom)), (0, 0)
    results = []
    if "fwd" in case.passes:
        results.append(F.conv2d(x, w, b, s.stride, padding, s.dilation, s.groups))
    training = case.direction == TRAINING_STEP
    mask = ["dgrad" in case.passes, "wgrad" in case.passes, training and b is not None]
    if any(mask):
        sizes = [s.K] if mask[2] else None
        numbers = s.stride, padding, s.dilation, False, (0, 0), s.groups
        gradients = list(torch.ops.aten.convolution_backward(g, x, w, sizes, *numbers, mask))
        if mask[0] and s.symmetric_padding is None:
            top, left = s.pad[0], s.pad[2]
            gradients[0] = gradients[0][:, :, top : top + s.H, left : left + s.W]
        results += [each for each, asked in zip(gradients, mask, strict=True) if asked]
    return tuple(results) if training else results[0]


@lru_cache(maxsize=1)
def _compiled_convolution(case: Case) -> Callable[..., Results]:
    """The same through torch.compile, at its best: Triton's kernels compete with cuDNN's."""

    def convolution(x: Tensor, w: Tensor, b: Tensor | None, g: Tensor) -> Results:
        return torch_convolution(case, x, w, b, g)

    torch._dynamo.reset()  # one graph per case; their number is limited
    compiled: Callable[..., Results] = torch.compile(
        convolution, dynamic=False, mode="max-autotune-no-cudagraphs"
    )
    return compiled


@contextlib.contextmanager
def torch_precision(precision: str) -> Iterator[None]:
    """PyTorch autotuned, and in the precision that is compared."""
    matmul = torch.backends.cuda.matmul
    saved, matmul.allow_tf32 = matmul.allow_tf32, precision == "tf32"
    try:
        with autotuned(allow_tf32=precision == "tf32"):
            yield
    finally:
        matmul.allow_tf32 = saved


def explain_shape(shape: Shape, bias: bool = False, **options: Any) -> Explanation:
    """explain() for a shape; options are its keywords."""
    s = shape
    weight = (s.K, s.C // s.groups, s.R, s.S)
    return explain(
        (s.N, s.C, s.H, s.W),
        weight,
        bias or None,
        s.stride,
        s.pad,
        s.dilation,
        s.groups,
        **options,
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
    )


def explain_passes(case: Case, device: torch.device) -> list[Explanation]:
    """explain() for every pass of a case."""
    return [explain_case(replace(case, direction=name), device) for name in case.passes]


def join_engines(engines: Sequence[str]) -> str:
    """One text for the engines of a case's passes: one name where all are the same."""
    return engines[0] if len(set(engines)) == 1 else "+".join(engines)


def split_engines(engine: str, passes: Sequence[str]) -> tuple[str, ...]:
    """The engine of each pass, from the text of join_engines."""
    names = tuple(engine.split("+"))
    return names if len(names) == len(passes) else names * len(passes)


def able_engines(engines: Sequence[str], explanations: Sequence[Explanation]) -> list[str]:
    """Those that refuse no pass and have the variant asked for, with all variants in place of
    "engine:*"."""
    first, *others = [_able_engines(engines, explanation) for explanation in explanations]
    return [name for name in first if all(name in other for other in others)]


def _able_engines(engines: Sequence[str], explanation: Explanation) -> list[str]:
    candidates = {candidate.name: candidate for candidate in explanation.candidates}
    names = []
    for engine in engines:
        name, _, variant = engine.partition(":")
        candidate = candidates.get(name)
        if candidate is None:  # "auto", or what the library will say is none
            names.append(engine)
        elif candidate.refusal:
            continue
        elif variant == "*":
            names += [name, *(f"{name}:{other}" for other in candidate.variants)]
        elif not variant or variant in candidate.variants:
            names.append(engine)
    return names


def measure(
    case: Case,
    engines: Sequence[str],
    timer: Timer,
    ceilings: dict[str, float],
    peers: Sequence[str] = (),
    tuned: bool = False,
) -> list[Row]:
    """A row per engine that does not refuse; PyTorch and others are measured once, all in turn.
    tuned: what "auto" takes is measured before; what it takes without is timed, too."""
    s = case.shape
    operands = Operands(case, timer.device)
    untuned = None
    if tuned:
        untuned = _choice(explain_passes(case, timer.device))
        with tune(), torch.no_grad():
            operands.by_engine("auto").ours()
    tensors = operands.x, operands.w, operands.g
    floor_s = floor_seconds(s, case.direction, case.precision, ceilings)
    explanations = explain_passes(case, timer.device)
    choice = _choice(explanations)
    able = {name: operands.by_engine(name) for name in able_engines(engines, explanations)}
    rows = []

    def find_error(results: Results) -> float:
        return worst_sampled_error(case.direction, s, results, *tensors, operands.b)

    with torch.no_grad(), torch_precision(case.precision):
        theirs_error = find_error(operands.theirs())
        errors = {name: find_error(own.ours()) for name, own in able.items()}
        calls: dict[str, Call | None] = {"cudnn": operands.theirs}
        if "inductor" in peers:
            calls["inductor"] = operands.inductors()
        if "cublas" in peers:
            calls["cublas"] = operands.cublas()
        if untuned is not None and (untuned != choice or "auto" not in able):
            calls["untuned"] = operands.by_engine(untuned).ours
        calls |= {f"ours {name}": own.ours for name, own in able.items()}
        timed = {name: call for name, call in calls.items() if call is not None}
        ms = dict(zip(timed, timer.medians_ms(list(timed.values())), strict=True))
        theirs_scratch = scratch_bytes(operands.theirs, timer.device)  # autotuned by now
        for engine, error in errors.items():
            ours_ms, theirs_ms = ms[f"ours {engine}"], ms["cudnn"]
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
                    tflops=len(case.passes) * s.flops / ours_ms / 1e9,
                    rel_error=error,
                    cudnn_rel_error=theirs_error,
                    chosen=name == choice,
                    inductor_ms=ms.get("inductor"),
                    bias=operands.b is not None,
                    cublas_ms=ms.get("cublas"),
                    untuned=untuned,
                    untuned_ms=None if untuned is None else ms.get("untuned", ms.get("ours auto")),
                    workspace_bytes=scratch_bytes(able[engine].ours, timer.device),
                    cudnn_workspace_bytes=theirs_scratch,
                    networks=networks_of(s),
                )
            )
    return rows


def _choice(explanations: Sequence[Explanation]) -> str:
    """The engines that a call gets, as Row.engine has them."""
    return join_engines([explanation.algorithm for explanation in explanations])


def measure_all(
    cases: Sequence[Case],
    engines: Sequence[str],
    timer: Timer,
    ceilings: dict[str, float],
    peers: Sequence[str] = (),
    tuned: bool = False,
    rows: list[Row] | None = None,
) -> list[Row]:
    """Rows of all cases, with a progress bar. They are added to `rows` as they are measured, so
    that a caller who is interrupted has those that are done."""
    rows = [] if rows is None else rows
    with Progress(len(cases)) as progress:
        for case in cases:
            with progress.step(str(case)):
                rows += measure(case, engines, timer, ceilings, peers, tuned)
    settle_floors(rows, ceilings, timer)
    return rows


def settle_floors(rows: Sequence[Row], ceilings: dict[str, float], timer: Timer) -> None:
    """Measures the ceilings again if a row is faster than its floor: then something else used the
    machine when they were measured. The higher rates are kept, in `ceilings` itself."""
    for _ in range(3):
        if all(row.floor_ms <= min(row.ours_ms, row.cudnn_ms) for row in rows):
            return
        names = [name for name in PRECISIONS if name in ceilings]
        again = measure_ceilings(timer.device, names, timer.budget_s)
        ceilings.update({name: max(rate, ceilings[name]) for name, rate in again.items()})
        for row in rows:
            shape = Shape.parse(row.text)
            row.floor_ms = floor_seconds(shape, row.direction, row.precision, ceilings) * 1e3
