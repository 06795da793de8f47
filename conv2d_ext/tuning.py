"""tune: measure a program's convolutions, and let algorithm="auto" take the fastest engines."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _ops
from ._files import locked
from ._machine import cpu_name
from ._progress import Progress
from ._text import format_table, html_table, time_text
from ._tuned import Problem, Tuned, choice_of, read_rows, row_key, row_of, rows_to_keep, write_rows
from ._user_error import UserError
from ._values import shown
from ._version import __version__
from .measuring.timing import WORTH_IT, Timer

__all__ = ["TuneReport", "Tuned", "clear_tuned", "load_tuned", "save_tuned", "set_autotune", "tune"]

# An engine this many times slower than the best by prediction is not tried.
_HOPELESS, _HOPELESS_US = 3.0, 20.0
# A first round, with this share of the time, reduces the algorithms to so many finalists.
_FINALISTS, _FIRST_ROUND = 6, 0.1
# Seconds spent on each engine when a first call is measured.
_FIRST_CALL_S = 0.005


@dataclass
class TuneReport:
    """The choices that tune() measured, in the order of the calls. Prints as a table."""

    choices: list[Tuned] = field(default_factory=list)
    total: int = 0  # different convolutions that the block computed

    def __str__(self) -> str:
        return "\n".join(self.parts())

    def parts(self) -> list[str]:
        """The table and the line below it."""
        if not self.choices:
            return ["no convolution was computed"]
        return [format_table(_HEADER, self._rows(), left=5), "", self._summary()]

    def _repr_html_(self) -> str:
        return html_table(_HEADER, self._rows()) + f"<p>{self._summary()}</p>"

    def _rows(self) -> list[list[str]]:
        return [
            [
                str(c.problem),
                c.problem.direction,
                c.problem.precision if c.problem.dtype == "float32" else c.problem.dtype,
                c.default,
                c.algorithm if c.algorithm != c.default else "the same",
                time_text(c.default_us),
                time_text(c.us),
            ]
            for c in self.choices
        ]

    def _summary(self) -> str:
        changed = sum(c.algorithm != c.default for c in self.choices)
        before = sum(c.default_us for c in self.choices)
        after = sum(c.us for c in self.choices)
        return (
            f"{changed} of {len(self.choices)} choices changed: "
            f"{time_text(before)} -> {time_text(after)}"
        )


_HEADER = ["shape", "direction", "precision", "heuristic", "measured", "before", "after"]
# The choices that this process has measured or loaded, by machine and problem.
_tuned: dict[tuple[str, Problem], Tuned] = {}
# First calls that could not be measured. They are not tried again, and the planner's choice stays.
_unmeasured: set[tuple[str, Problem]] = set()
_recording = False
_measuring = threading.Lock()  # two first calls at once would disturb each other's times


@contextmanager
def tune(seconds: float = 0.01, *, progress: bool = False) -> Iterator[TuneReport]:
    """Measure, at the end of the block, every convolution that was computed in it.

    Engines that could be fastest are timed for ``seconds`` each, on random tensors of the same
    sizes and strides. From then on ``algorithm="auto"`` takes the fastest for these sizes, in
    this process; :func:`save_tuned` keeps the choices for others. Without tuning, equal calls
    have equal bits in every process; tuned ones have where the same choices were loaded.

    >>> with conv2d_ext.tune() as report:
    ...     model(x).sum().backward()
    >>> print(report)
    """
    global _recording
    if _recording:
        raise UserError("convx.tune: another block is being recorded; blocks cannot be nested")
    _recording = True
    report = TuneReport()
    for kind in _kinds():
        _op("record", kind)(True)
    try:
        yield report
    finally:
        _recording = False
        calls = [
            (torch.device(kind, call["device"]), Problem.from_json(call["problem"]))
            for kind in _kinds()
            for call in json.loads(_op("record", kind)(False))
        ]
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise UserError("convx.tune: nothing can be measured while a CUDA graph is captured")
    report.total = len(calls)
    with Progress(len(calls), shown=progress) as bar:
        for device, problem in calls:
            with bar.step(f"{problem} {problem.direction}"):
                choice = _measure_within_memory(problem, device, seconds)
                if choice:
                    report.choices.append(choice)


def set_autotune(on: bool) -> bool:
    """Measure every convolution at its first call from now on, and return whether it was so before.

    As ``torch.backends.cudnn.benchmark`` does for PyTorch's own: a size that ``algorithm="auto"``
    has not met takes some 0.1 s more the first time, and the fastest engine afterwards. Sizes that
    :func:`tune` has measured, or that were loaded, are not measured again. While a CUDA graph is
    captured nothing is measured: run once before capturing.
    """
    if not isinstance(on, bool):
        raise TypeError(f"convx.set_autotune: on must be a bool, but got on={shown(on)}")
    before = [_op("autotune", kind)(on) for kind in _kinds()]
    return any(before)


def _measure_first_call(kind: str, text: str) -> None:
    """The libraries call this function from the thread that computes. It reports the fastest engine
    by _prefer; if it does not, the next call of that size calls it again."""
    if kind == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    call = json.loads(text)
    device, problem = torch.device(kind, call["device"]), Problem.from_json(call["problem"])
    with _measuring:
        known = _tuned.get((_machine(device), problem))  # on an equal GPU, or by another thread
        try:
            choice = known or _measure_within_memory(problem, device, _FIRST_CALL_S)
        except Exception as error:  # the calling library could only say that there was an error
            warnings.warn(f"convx.set_autotune: cannot measure {problem}: {error}", stacklevel=2)
            choice = None
        if choice:
            _prefer(problem, choice.algorithm, device)
        else:
            _unmeasured.add((_machine(device), problem))
            _prefer(problem, _explain(problem, device)["engine"], device)


_library = torch.library.Library("convx", "FRAGMENT")
_library.define("_measure(str kind, str call) -> ()")
_library.impl("_measure", _measure_first_call, "CompositeExplicitAutograd")


def save_tuned(path: str | Path) -> int:
    """Add all choices that this process has measured or loaded to a file, and return how many
    choices the file then has.

    Choices in the file for other sizes, other machines, other numbers of threads and other versions
    of convx stay. A choice for the same sizes on the same machine is replaced. Processes may save
    to one file at the same time. Delete the file to start afresh.
    """
    path = Path(path)
    with locked(path):
        merged = {row_key(row): row for row in rows_to_keep(path)}
        for choice in list(_tuned.values()):
            row = row_of(choice)
            merged[row_key(row)] = row
        write_rows(path, list(merged.values()))
    return len(merged)


def load_tuned(path: str | Path) -> int:
    """Take the choices of a file for the machines that are here, and return their number.

    Choices of other versions of convx are left alone, because their engines differ; a file that has
    no others gives a warning.
    """
    try:
        rows = read_rows(Path(path))
        choices = [choice_of(row) for row in rows if row["convx"] == __version__]
    except (OSError, ValueError) as error:
        raise UserError(f"convx.load_tuned: cannot read path={str(path)!r}: {error}") from error
    if rows and not choices:
        versions = ", ".join(sorted({row["convx"] for row in rows}))
        warnings.warn(
            f"convx.load_tuned: {path} is of convx {versions}, this is {__version__}: tune again",
            stacklevel=2,
        )
        return 0
    count = 0
    for device in _devices():
        machine = _machine(device)
        for choice in choices:
            if choice.machine != machine:
                continue
            # An engine may refuse a problem that it computed under other settings.
            with suppress(RuntimeError):
                _prefer(choice.problem, choice.algorithm, device)
                _tuned[machine, choice.problem] = choice
                count += 1
    return count


def clear_tuned() -> None:
    """Forget all measured choices, so that algorithm="auto" predicts again."""
    for device in _devices():
        for machine, problem in [*_tuned, *_unmeasured]:
            if machine == _machine(device):
                _prefer(problem, "auto", device)
    _tuned.clear()
    _unmeasured.clear()


def _measure_within_memory(problem: Problem, device: torch.device, seconds: float) -> Tuned | None:
    try:
        choice = _measure(problem, device, seconds)
    except RuntimeError as error:
        if not _ops.says_out_of_memory(error):
            raise
        warnings.warn(f"convx.tune: there is no memory to measure {problem} with", stacklevel=4)
        return None
    _tuned[choice.machine, problem] = choice
    return choice


def _measure(problem: Problem, device: torch.device, seconds: float) -> Tuned:
    """Times the engines, and lets "auto" take the fastest. If the measurement is interrupted or
    fails, "auto" keeps its earlier choice."""
    earlier = _tuned.get((_machine(device), problem))
    _prefer(problem, "auto", device)
    try:
        return _find_fastest(problem, device, seconds)
    except BaseException:
        if earlier:
            _prefer(problem, earlier.algorithm, device)
        raise


def _find_fastest(problem: Problem, device: torch.device, seconds: float) -> Tuned:
    default, *others = _promising(_explain(problem, device))
    with torch.no_grad(), torch.cuda.device(device if device.type == "cuda" else -1):
        call = problem.operands(device)
        names = [default, *(name for name in others if _fits(call, name))]
        if len(names) > _FINALISTS:
            first = _times_us(call, names, device, _FIRST_ROUND * seconds)
            fastest = sorted(names, key=first.__getitem__)[:_FINALISTS]
            names = list(dict.fromkeys([default, *fastest]))
        us = _times_us(call, names, device, seconds)
    best = min(us, key=us.__getitem__)
    if us[best] > WORTH_IT * us[default]:
        best = default
    _prefer(problem, best, device)
    return Tuned(_machine(device), problem, best, us[best], default, us[default])


def _promising(answer: dict[str, Any]) -> list[str]:
    """The planner's choice, and all algorithms in explain's answer that could be faster."""
    able = [c for c in answer["candidates"] if not c["refusal"] and not c["by_name_only"]]
    limit = _HOPELESS * min(c["predicted_us"] for c in able) + _HOPELESS_US
    names = [answer["engine"]]
    for candidate in able:
        if candidate["predicted_us"] <= limit:
            name = candidate["name"]
            names += [name, *(f"{name}:{variant}" for variant in candidate["variants"])]
    return list(dict.fromkeys(names))


def _times_us(
    call: Callable[[str], Tensor], names: Sequence[str], device: torch.device, seconds: float
) -> dict[str, float]:
    timer = Timer(device, budget_s=seconds, graphs=device.type == "cuda")
    times = timer.medians_ms([partial(call, name) for name in names])
    return {name: time * 1e3 for name, time in zip(names, times, strict=True)}


def _fits(call: Callable[[str], Tensor], algorithm: str) -> bool:
    """Whether there is memory for the algorithm's workspace."""
    try:
        call(algorithm)
    except RuntimeError as error:
        if not _ops.says_out_of_memory(error):
            raise
        return False
    return True


def _op(name: str, kind: str) -> Any:
    return getattr(torch.ops.convx, f"_{name}_{kind}").default


def _explain(problem: Problem, device: torch.device) -> dict[str, Any]:
    return json.loads(_op("explain", device.type)(*problem.arguments("auto", device)))


def _prefer(problem: Problem, algorithm: str, device: torch.device) -> None:
    _op("prefer", device.type)(*problem.arguments(algorithm, device))


def _kinds() -> list[str]:
    """The types of the devices that convx computes on here."""
    return ["cpu", "cuda"] if hasattr(torch.ops.convx, "_record_cuda") else ["cpu"]


def _devices() -> list[torch.device]:
    gpus = torch.cuda.device_count() if "cuda" in _kinds() else 0
    return [torch.device("cpu"), *(torch.device("cuda", index) for index in range(gpus))]


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {torch.get_num_threads()} threads"
