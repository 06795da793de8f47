"""convx scan: every convolution of a model, and the time that convert() would save."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from .._files import write_json
from .._interrupts import saving, uninterrupted
from .._text import show
from ..bench.report import describe_machine
from ..scan import ScanReport, Times, find_convolutions, make_report, time_calls
from .models import add_model, make_model, model_precision, run_model
from .options import Commands, add_direction, add_json, add_seconds
from .outputs import Incomplete, check_outputs, check_replaceable, save, save_incomplete


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "scan",
        help="every convolution of a model, and what it would gain",
        description="Run a model once, list its 2-D convolutions, and measure each, ours and "
        "PyTorch's own: what would convert(model) save?",
    )
    add_model(parser)
    add_direction(parser, "forward")
    add_seconds(parser, 0.1, "measurement")
    add_json(parser, "all times")
    parser.add_argument("--train", action="store_true", help="leave the model in training mode")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    check_outputs(arguments.json)
    check_replaceable(arguments.json, "layers", "scan --json")
    device, directions = arguments.device, arguments.direction
    with model_precision(arguments):
        model, inputs = make_model(arguments)
        model.train(arguments.train)
        calls = run_model(lambda: find_convolutions(model, *inputs))
        times: Times = {}

        def stop() -> None:
            report = make_report(calls, directions, device, times)
            save_incomplete(
                Incomplete(len(report.layers), len(calls), "convolutions"),
                [arguments.json],
                partial(_save, arguments, report),
                lambda: show(*report.parts()),
            )

        with saving(stop):
            time_calls(calls, directions, device, arguments.seconds, times, progress=True)
        report = make_report(calls, directions, device, times)
    with uninterrupted():
        _save(arguments, report)
    show(*report.parts())
    return 0


def _save(
    arguments: argparse.Namespace, report: ScanReport, incomplete: Incomplete | None = None
) -> None:
    about: dict[str, Any] = {
        **(incomplete.mark if incomplete else {}),
        "machine": describe_machine(arguments.device),
        "model": arguments.model,
        "input": arguments.input,
    }
    document = {**about, **report.to_dict()}
    save(arguments.json, lambda path: write_json(path, document), incomplete)
