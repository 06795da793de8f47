"""step: the time of a whole model's step, as it is and converted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ._progress import Progress
from ._text import format_table, html_table
from ._user_error import UserError
from .bench.timing import Timer, autotuned
from .convert import ConvertReport, convert

_HEADER = ["step", "original ms", "converted ms", "ratio"]


@dataclass(frozen=True)
class Step:
    """One kind of step; a ratio above 1 means that the converted model is faster."""

    name: str
    original_ms: float
    converted_ms: float

    @property
    def ratio(self) -> float:
        return self.original_ms / self.converted_ms


@dataclass(frozen=True)
class StepReport:
    """Times of both models. Prints as a table."""

    steps: tuple[Step, ...]
    converted: ConvertReport

    def __str__(self) -> str:
        return "\n".join(self.parts())

    def parts(self) -> list[str]:
        """The table and the line below it."""
        return [format_table(_HEADER, self._rows()), "", self._summary()]

    def _repr_html_(self) -> str:
        return html_table(_HEADER, self._rows()) + f"<p>{self._summary()}</p>"

    def to_dict(self) -> dict[str, Any]:
        """Milliseconds of both models, and how many convolutions were converted."""
        times = {
            step.name: {"original_ms": step.original_ms, "converted_ms": step.converted_ms}
            for step in self.steps
        }
        counts = {"converted": len(self.converted.swapped), "kept": len(self.converted.kept)}
        return {**times, "convolutions": counts}

    def _rows(self) -> list[list[str]]:
        return [
            [step.name, f"{step.original_ms:.3f}", f"{step.converted_ms:.3f}", f"{step.ratio:.2f}x"]
            for step in self.steps
        ]

    def _summary(self) -> str:
        swapped, kept = len(self.converted.swapped), len(self.converted.kept)
        return f"{swapped} of {swapped + kept} convolutions converted"


def measure_steps(model: nn.Module, *inputs: Tensor, seconds: float = 0.5) -> StepReport:
    """Times an inference step and a training step of a model, as it is and converted.

    Both run eagerly on copies, PyTorch's own convolutions autotuned; a training step is forward,
    backward of a mean square over all outputs, and no optimizer. The model is left as it was.

    Args:
        model: on the device, in the dtype and memory format that are of interest.
        inputs: what it is called with.
        seconds: spent on each measurement.
    """
    original, converted, report = copy_and_convert(model)
    steps: list[Step] = []
    time_steps(original, converted, inputs, seconds, steps)
    return StepReport(tuple(steps), report)


def copy_and_convert(model: nn.Module) -> tuple[nn.Module, nn.Module, ConvertReport]:
    """Two copies of a model, the second one converted, and what convert() said."""
    original, converted = copy.deepcopy(model), copy.deepcopy(model)
    return original, converted, convert(converted, policy="all")


def try_steps(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Takes every kind of step once: what is wrong with the inputs comes out before the timing."""
    for name, run in _KINDS:
        model.train(name == "training")
        run(model, inputs)


def time_steps(
    original: nn.Module,
    converted: nn.Module,
    inputs: tuple[Tensor, ...],
    seconds: float,
    steps: list[Step],
    progress: bool = False,
) -> None:
    """Adds the times of each kind of step to `steps`. A caller who is interrupted finds those there
    that are done."""
    timer = Timer(inputs[0].device, budget_s=seconds)
    models = (original, converted)
    with (
        autotuned(torch.backends.cudnn.allow_tf32),
        Progress(len(_KINDS), shown=progress) as bar,
    ):
        for name, run in _KINDS:
            with bar.step(f"{name} step"):
                for which in models:
                    which.train(name == "training")
                times = timer.medians_ms([partial(run, which, inputs) for which in models])
                steps.append(Step(name, *times))


def _infer(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    with torch.no_grad():
        return model(*inputs)


def _train(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    model.zero_grad(set_to_none=True)
    run_backward(model(*inputs))


def run_backward(outputs: Any) -> None:
    """The backward pass of a mean square over all outputs, wherever a model puts them."""
    leaves = pytree.tree_leaves(outputs)
    useful = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not useful:
        raise UserError("no output of the model has a gradient, so it has no training step")
    torch.stack([output.float().square().mean() for output in useful]).sum().backward()


_KINDS: list[tuple[str, Callable[[nn.Module, tuple[Tensor, ...]], Any]]] = [
    ("inference", _infer),
    ("training", _train),
]
