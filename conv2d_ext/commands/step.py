"""convx step: the time of a whole model's step, as it is and converted."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from .._files import append_line
from .._interrupts import saving, uninterrupted
from .._text import show
from ..bench.precisions import precision_name
from ..bench.report import describe_machine
from ..step import Step, StepReport, copy_and_convert, time_steps, try_steps
from .models import add_model, make_model, model_dtype, model_precision, run_model
from .options import Commands, add_json, add_seconds
from .outputs import Incomplete, check_appendable, check_outputs, save, save_incomplete

_KINDS = 2  # inference and training


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "step",
        help="a whole model's step, as it is and converted",
        description="Time a whole model, as it is and converted: an inference step, and a training "
        "step (forward and backward, no optimizer).",
    )
    add_model(parser)
    add_seconds(parser, 0.5, "measurement")
    add_json(parser, "the result as one line of JSON, behind those that are there,")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    check_outputs(arguments.json)
    check_appendable(arguments.json, "step --json")
    with model_precision(arguments):
        model, inputs = make_model(arguments)
        original, converted, swapped = copy_and_convert(model)
        run_model(lambda: try_steps(converted, tuple(inputs)))
        steps: list[Step] = []

        def stop() -> None:
            report = StepReport(tuple(steps), swapped)
            save_incomplete(
                Incomplete(len(steps), _KINDS, "steps"),
                [arguments.json],
                partial(_save, arguments, report),
                lambda: show(*report.parts()),
            )

        with saving(stop):
            time_steps(original, converted, tuple(inputs), arguments.seconds, steps, progress=True)
    report = StepReport(tuple(steps), swapped)
    with uninterrupted():
        _save(arguments, report)
    show(*report.parts())
    return 0


def _save(
    arguments: argparse.Namespace, report: StepReport, incomplete: Incomplete | None = None
) -> None:
    dtype = model_dtype(arguments)
    line: dict[str, Any] = {
        **(incomplete.mark if incomplete else {}),
        "model": arguments.model,
        "input": arguments.input,
        "dtype": str(dtype).removeprefix("torch."),
        "precision": arguments.precision or precision_name(dtype, "torch"),
        "layout": arguments.layout,
        **report.to_dict(),
        "machine": describe_machine(arguments.device),
    }
    save(arguments.json, lambda path: append_line(path, json.dumps(line)), incomplete)
