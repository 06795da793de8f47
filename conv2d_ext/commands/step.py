"""convx step: the time and the memory of a whole model's step, as it is and with convx."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

from torch import Tensor, nn

from .._choices import POLICIES
from .._files import append_line
from .._interrupts import saving, uninterrupted
from .._precision import dtype_of, precision_name
from .._shape import LAYOUT_NAMES
from .._text import show
from .._user_error import UserError
from ..bench.report import describe_machine
from ..step import KINDS, Autocast, Deadline, StepTimes, try_steps
from .models import add_model, make_model, model_dtype, model_precision, run_model
from .options import Commands, add_json, add_seconds, choice, choices, positive_number
from .outputs import Incomplete, check_appendable, check_outputs, save, save_incomplete

_EXECUTIONS = ("eager", "compiled")
_CASTS = ("bf16", "fp16")  # the precisions of --autocast


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "step",
        help="a whole model's step, as it is and converted",
        description="Time whole models, as they are and with convx: an inference step, and a "
        "training step (forward and backward, no optimizer), with the GPU memory at their peaks.",
    )
    add_model(parser, several=True)
    parser.add_argument(
        "--autocast",
        action="store_true",
        help="bf16 and fp16 by torch.autocast, with parameters in float32",
    )
    _add_words(parser, "--mode", KINDS, ",".join(KINDS))
    _add_words(parser, "--execution", _EXECUTIONS, "eager")
    parser.add_argument(
        "--policy",
        type=choice(POLICIES),
        default="all",
        metavar="NAME",
        help="which convolutions convx computes: all, or those that are faster (default: all)",
    )
    add_seconds(parser, 0.5, "measurement")
    parser.add_argument(
        "--limit",
        type=positive_number,
        metavar="S",
        help="time for each model; steps for which none is left are left out (default: no limit)",
    )
    add_json(
        parser, "the results as lines of JSON, one for each step, behind those that are there,"
    )
    parser.set_defaults(run=run)


def _add_words(
    parser: argparse.ArgumentParser, option: str, words: tuple[str, ...], default: str
) -> None:
    parser.add_argument(
        option,
        type=choices(words),
        default=default.split(","),
        metavar="NAMES",
        help=f"{', '.join(words)}; several separated by commas (default: {default})",
    )


@dataclass
class _Setting:
    """One model in one precision and layout; `arguments` are the command's, with these alone."""

    arguments: argparse.Namespace
    execution: str
    deadline: Deadline

    @property
    def title(self) -> str:
        a = self.arguments
        words = a.model, a.precision, "autocast" if a.autocast else None, LAYOUT_NAMES[a.layout]
        return " ".join(word for word in words if word)


def run(arguments: argparse.Namespace) -> int:
    check_outputs(arguments.json)
    check_appendable(arguments.json, "step --json")
    if arguments.autocast and not set(arguments.precision or ()) & set(_CASTS):
        raise UserError("--autocast is for --precision bf16 or fp16")
    lists = arguments.model, arguments.execution, arguments.precision or [None], arguments.layout
    total = prod(len(words) for words in lists)
    for at, setting in enumerate(_find_settings(arguments)):
        if setting.deadline.is_over:
            show(f"{setting.title}, {setting.execution}: no time was left")
        else:
            _measure(setting, at, total)
    return 0


def _find_settings(arguments: argparse.Namespace) -> Iterator[_Setting]:
    """Yields settings one by one, so that a model's time limit begins with its first setting.
    Compiled steps come last, because compilation may take all of the time."""
    for model in arguments.model:
        deadline = Deadline(arguments.limit)
        precisions = arguments.precision or [None]
        for which in product(arguments.execution, precisions, arguments.layout):
            execution, precision, layout = which
            own = {**vars(arguments), "model": model, "precision": precision, "layout": layout}
            yield _Setting(argparse.Namespace(**own), execution, deadline)


def _measure(setting: _Setting, at: int, total: int) -> None:
    arguments = setting.arguments
    with model_precision(arguments):
        model, inputs = _make_model(arguments)
        run_model(lambda: try_steps(model, tuple(inputs), arguments.mode))
        steps = StepTimes(
            model, tuple(inputs), arguments.seconds, arguments.policy, setting.deadline
        )

        def stop() -> None:
            kinds = len(arguments.mode)
            save_incomplete(
                Incomplete(at * kinds + len(steps.steps), total * kinds, "steps"),
                [arguments.json],
                partial(_save, setting, steps),
                lambda: _show(setting, steps, total),
            )

        with saving(stop):
            steps.measure(arguments.mode, setting.execution == "compiled", progress=True)
    with uninterrupted():
        _save(setting, steps)
    _show(setting, steps, total)


def _make_model(arguments: argparse.Namespace) -> tuple[nn.Module, list[Tensor]]:
    model, inputs = make_model(_parameters(arguments))
    if not arguments.autocast or arguments.precision not in _CASTS:
        return model, inputs
    return Autocast(model, dtype_of(arguments.precision)), inputs


def _parameters(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments with the precision of the parameters, which is float32 under autocast."""
    is_cast = arguments.autocast and arguments.precision in _CASTS
    return argparse.Namespace(**{**vars(arguments), **({"precision": None} if is_cast else {})})


def _show(setting: _Setting, steps: StepTimes, total: int) -> None:
    title = [setting.title] if total > 1 else []
    show(*title, *steps.report().parts(), *([""] if title else []))


def _save(setting: _Setting, steps: StepTimes, incomplete: Incomplete | None = None) -> None:
    arguments = setting.arguments
    dtype = model_dtype(_parameters(arguments))
    report = steps.report().to_dict()
    about: dict[str, Any] = {
        **(incomplete.mark if incomplete else {}),
        "model": arguments.model,
        "input": arguments.input,
        "dtype": str(dtype).removeprefix("torch."),
        "precision": arguments.precision or precision_name(dtype, "torch"),
        "autocast": arguments.autocast and arguments.precision in _CASTS,
        "layout": arguments.layout,
        "policy": arguments.policy,
    }
    rest = {"convolutions": report["convolutions"], "machine": describe_machine(arguments.device)}
    lines = [json.dumps({**about, **row, **rest}) for row in report["steps"]]
    if lines:
        save(arguments.json, lambda path: append_line(path, "\n".join(lines)), incomplete)
