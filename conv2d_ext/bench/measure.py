"""One row of the benchmark: a case, measured with convx and with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .._fused import ACTIVATIONS
from .._precision import PRECISIONS
from .._progress import Progress
from .._shape import Shape
from ..explain import Explanation, explain_case
from ..measuring.case import SLOPE, Case, Operands, Results, join_engines, torch_precision
from ..measuring.roofline import floor_seconds, measure_ceilings
from ..measuring.timing import Call, Timer, scratch_bytes
from ..tuning import tune
from .peers import cublas, inductor
from .reference import worst_sampled_error
from .shapes import networks_of


@dataclass
class Row:
    """The times and errors of one case and engine; ratio is PyTorch's time over ours. On a GPU
    PyTorch's convolution is cuDNN's. The engine of a training step is one name, or the names of its
    three passes with plus signs between them."""

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
    chosen: bool = True  # the planner would take this engine
    inductor_ms: float | None = None  # torch.compile's, where it was asked for
    bias: bool = False
    # What follows the bias. The peers compute it in separate operators, and unfused_ms is the time
    # of convx's convolution with these.
    activation: str = "none"
    residual: bool = False
    unfused_ms: float | None = None
    cublas_ms: float | None = None  # of a 1x1 layer's product, where it was asked for
    # After tune(): the algorithm that is chosen without it, and its time.
    untuned: str | None = None
    untuned_ms: float | None = None
    # GPU memory that a call takes while it runs, beyond its operands and its result.
    workspace_bytes: int | None = None
    cudnn_workspace_bytes: int | None = None
    # The networks of networks.json that have this layer, and how often each computes it.
    networks: dict[str, int] = field(default_factory=dict)


def explain_passes(case: Case, device: torch.device) -> list[Explanation]:
    """explain() for every pass of a case."""
    return [explain_case(replace(case, direction=name), device) for name in case.passes]


def able_engines(engines: Sequence[str], explanations: Sequence[Explanation]) -> list[str]:
    """The engines that refuse no pass and have the variant asked for, with all variants in place of
    "engine:*"."""
    first, *others = [_able_engines(engines, explanation) for explanation in explanations]
    return [name for name in first if all(name in other for other in others)]


def _able_engines(engines: Sequence[str], explanation: Explanation) -> list[str]:
    candidates = {candidate.name: candidate for candidate in explanation.candidates}
    names = []
    for engine in engines:
        name, _, variant = engine.partition(":")
        candidate = candidates.get(name)
        if candidate is None:  # "auto", or a name that the library will reject
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
    """A row per engine that does not refuse. PyTorch and other libraries are measured once, and all
    calls alternate. `tuned` runs tune() first, and times the planner's own choice, too."""
    s = case.shape
    operands = Operands(case, timer.device)
    untuned = None
    if tuned:
        untuned = _choice(explain_passes(case, timer.device))
        with tune(), torch.no_grad():
            operands.by_engine("auto").ours()
    tensors = operands.x, operands.w, operands.g
    floor_s = floor_seconds(s, case.direction, case.precision, ceilings, case.residual)
    explanations = explain_passes(case, timer.device)
    choice = _choice(explanations)
    able = {name: operands.by_engine(name) for name in able_engines(engines, explanations)}
    rows = []

    def activate(sums: Tensor) -> Tensor:
        return ACTIVATIONS[case.activation](sums, SLOPE)

    epilogue = (activate, operands.r) if case.is_fused else None

    def find_error(results: Results) -> float:
        return worst_sampled_error(case.direction, s, results, *tensors, operands.b, epilogue)

    with torch.no_grad(), torch_precision(case.precision):
        theirs_error = find_error(operands.theirs())
        errors = {name: find_error(own.ours()) for name, own in able.items()}
        calls: dict[str, Call | None] = {"cudnn": operands.theirs}
        if "inductor" in peers:
            calls["inductor"] = inductor(operands)
        if "cublas" in peers:
            calls["cublas"] = cublas(operands)
        if untuned is not None and (untuned != choice or "auto" not in able):
            calls["untuned"] = operands.by_engine(untuned).ours
        if case.is_fused:
            calls["unfused"] = operands.by_engine("auto").unfused
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
                    activation=case.activation,
                    residual=case.residual,
                    unfused_ms=ms.get("unfused"),
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
    that an interrupted caller has them."""
    rows = [] if rows is None else rows
    with Progress(len(cases)) as progress:
        for case in cases:
            with progress.step(str(case)):
                rows += measure(case, engines, timer, ceilings, peers, tuned)
    settle_floors(rows, ceilings, timer)
    return rows


def settle_floors(rows: Sequence[Row], ceilings: dict[str, float], timer: Timer) -> None:
    """Measures the ceilings again if a row is faster than its floor: then another program used the
    machine when they were measured. Keeps the higher rates, in `ceilings` itself."""
    for _ in range(3):
        if all(row.floor_ms <= min(row.ours_ms, row.cudnn_ms) for row in rows):
            return
        names = [name for name in PRECISIONS if name in ceilings]
        again = measure_ceilings(timer.device, names, timer.budget_s)
        ceilings.update({name: max(rate, ceilings[name]) for name, rate in again.items()})
        for row in rows:
            shape = Shape.parse(row.text)
            seconds = floor_seconds(shape, row.direction, row.precision, ceilings, row.residual)
            row.floor_ms = seconds * 1e3
