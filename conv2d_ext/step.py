"""step: the time and the memory of a whole model's step, as it is and with convx."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ._progress import Progress
from ._text import format_table, html_table, mebibytes_text
from .compile import compile_backend
from .convert import ConvertReport, convert
from .measuring.model import run_step
from .measuring.timing import Timer, autotuned

_HEADER = ["step", "original ms", "converted ms", "ratio", "original peak", "converted peak"]
_MODES = {"inference": "infer", "training": "train"}
KINDS = tuple(_MODES)
# The time spent on a layer is this share of the time spent on a step.
_LAYER_SHARE = 0.04


@dataclass(frozen=True)
class Step:
    """One kind of step; a ratio above 1 means that the model is faster with convx.

    Peaks are the GPU memory that a step takes beyond parameters and inputs: activations, gradients
    and workspaces. They are None on the CPU, whose allocator does not tell.
    """

    name: str
    original_ms: float
    converted_ms: float
    compiled: bool = False
    original_peak_bytes: int | None = None
    converted_peak_bytes: int | None = None

    @property
    def ratio(self) -> float:
        return self.original_ms / self.converted_ms

    @property
    def title(self) -> str:
        return f"{self.name}, compiled" if self.compiled else self.name

    def to_dict(self) -> dict[str, Any]:
        """A row of `convx step --json` without the model, layout and precision."""
        return {
            "mode": _MODES[self.name],
            "compiled": self.compiled,
            "ours_ms": self.converted_ms,
            "torch_ms": self.original_ms,
            "ratio": self.ratio,
            "ours_peak_bytes": self.converted_peak_bytes,
            "torch_peak_bytes": self.original_peak_bytes,
        }


@dataclass(frozen=True)
class StepReport:
    """Times of both models. Prints as a table."""

    steps: tuple[Step, ...]
    converted: ConvertReport | None = None
    left_out: int = 0  # steps for which there was no time

    def __str__(self) -> str:
        return "\n".join(self.parts())

    def parts(self) -> list[str]:
        """The table and the line below it."""
        return [format_table(_HEADER, self._rows()), "", self._summary()]

    def _repr_html_(self) -> str:
        return html_table(_HEADER, self._rows()) + f"<p>{self._summary()}</p>"

    def to_dict(self) -> dict[str, Any]:
        """Rows of all steps, and how many convolutions were converted."""
        counts = None
        if self.converted is not None:
            counts = {"converted": len(self.converted.swapped), "kept": len(self.converted.kept)}
        return {"steps": [step.to_dict() for step in self.steps], "convolutions": counts}

    def _rows(self) -> list[list[str]]:
        return [
            [
                step.title,
                f"{step.original_ms:.3f}",
                f"{step.converted_ms:.3f}",
                f"{step.ratio:.2f}x",
                *("-" if peak is None else mebibytes_text(peak) for peak in _peaks(step)),
            ]
            for step in self.steps
        ]

    def _summary(self) -> str:
        texts = []
        if self.converted is not None:
            swapped, kept = len(self.converted.swapped), len(self.converted.kept)
            texts.append(f"{swapped} of {swapped + kept} convolutions converted")
        if self.left_out:
            texts.append(f"no time was left for {self.left_out} steps")
        return "; ".join(texts) or "compiled by the backend convx"


def _peaks(step: Step) -> tuple[int | None, int | None]:
    return step.original_peak_bytes, step.converted_peak_bytes


class Autocast(nn.Module):
    """A model that computes under autocast, or, without a dtype, as it is."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, *inputs: Tensor) -> Any:
        with torch.autocast(inputs[0].device.type, self.dtype, enabled=self.dtype is not None):
            return self.model(*inputs)


class Deadline:
    """A time limit for several measurements. A measurement cannot be interrupted, so none begins
    that would end too late if it took as long as the last one of its kind."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.perf_counter() + seconds
        self._took: dict[object, float] = {}

    @property
    def is_over(self) -> bool:
        return self._end is not None and time.perf_counter() > self._end

    def run(self, kind: object, measure: Callable[[], None]) -> bool:
        """Whether there was time to measure."""
        begin = time.perf_counter()
        if self._end is not None and begin + self._took.get(kind, 0.0) > self._end:
            return False
        measure()
        self._took[kind] = time.perf_counter() - begin
        return True


def measure_steps(
    model: nn.Module,
    *inputs: Tensor,
    seconds: float = 0.5,
    kinds: Sequence[str] = KINDS,
    compiled: Sequence[bool] = (False,),
    policy: str = "all",
    limit: float | None = None,
) -> StepReport:
    """Times an inference step and a training step of a model, as it is and with convx.

    Both run on copies, PyTorch's own convolutions autotuned; a training step is forward, backward
    of a mean square over all outputs, and no optimizer. The model is left as it was.

    Args:
        model: on the device, in the dtype and memory format that are of interest.
        inputs: the model's positional arguments.
        seconds: spent on each measurement.
        kinds: some of "inference" and "training".
        compiled: False for eager steps, which compare the model with its converted copy, True for
            steps through torch.compile, which compare the backends "inductor" and "convx".
        policy: convert() and the backend replace "all" layers, or the ones "faster" in the step.
        limit: seconds for all measurements; steps are left out when no time is left for them.
    """
    steps = StepTimes(model, inputs, seconds, policy, Deadline(limit))
    for is_compiled in compiled:
        steps.measure(kinds, is_compiled)
    return steps.report()


def try_steps(model: nn.Module, inputs: tuple[Tensor, ...], kinds: Sequence[str] = KINDS) -> None:
    """Takes every kind of step once, so that wrong inputs fail before the timing."""
    for name in kinds:
        model.train(name == "training")
        run_step(model, inputs, {}, name == "training")
    model.zero_grad(set_to_none=True)


class StepTimes:
    """Measures steps one after another, and adds them to `steps`."""

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Tensor, ...],
        seconds: float,
        policy: str,
        deadline: Deadline,
    ) -> None:
        self.model, self.inputs, self.policy, self.deadline = model, inputs, policy, deadline
        self.timer = Timer(inputs[0].device, budget_s=seconds)
        self.steps: list[Step] = []
        self.converted: ConvertReport | None = None
        self.left_out = 0

    def report(self) -> StepReport:
        return StepReport(tuple(self.steps), self.converted, self.left_out)

    def measure(self, kinds: Sequence[str], compiled: bool, progress: bool = False) -> None:
        with (
            autotuned(torch.backends.cudnn.allow_tf32),
            Progress(len(kinds), shown=progress) as bar,
        ):
            for name in kinds:
                with bar.step(f"{name} step{', compiled' if compiled else ''}"):
                    measure = partial(self._measure, name, compiled)
                    self.left_out += not self.deadline.run((name, compiled), measure)

    def _measure(self, name: str, compiled: bool) -> None:
        train = name == "training"
        models = self._make_models(train, compiled)
        for model in models:
            model.train(train)
        calls = [partial(run_step, model, self.inputs, {}, train) for model in models]
        times = self.timer.medians_ms(calls)
        peaks = [
            _peak_bytes(model, call, self.timer.device)
            for model, call in zip(models, calls, strict=True)
        ]
        self.steps.append(Step(name, times[0], times[1], compiled, *peaks))

    def _make_models(self, train: bool, compiled: bool) -> list[Any]:
        original, ours = copy.deepcopy(self.model), copy.deepcopy(self.model)
        if compiled:
            torch._dynamo.reset()  # the number of graphs for one function is limited
            return [torch.compile(original), torch.compile(ours, backend=self._backend())]
        if self.policy == "all":
            self.converted = convert(ours, policy="all")
        else:
            self.converted = convert(
                ours,
                policy="faster",
                example=self.inputs,
                train=train,
                seconds=self.timer.budget_s * _LAYER_SHARE,
            )
        return [original, ours]

    def _backend(self) -> Callable[..., Any]:
        return compile_backend(self.policy)


def _peak_bytes(model: nn.Module, call: Callable[[], object], device: torch.device) -> int | None:
    """The GPU memory that a step takes at its peak beyond parameters and inputs. The step must have
    run before, because autotuning takes more memory than the kernels it chooses."""
    if device.type != "cuda":
        return None
    model.zero_grad(set_to_none=True)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    peak = torch.cuda.max_memory_allocated(device)
    model.zero_grad(set_to_none=True)
    return peak - before
