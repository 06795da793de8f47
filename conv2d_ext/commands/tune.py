"""convx tune: measure the engines on a model's convolutions, and keep the fastest in a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._interrupts import saving, uninterrupted
from .._text import show
from .._tuned import rows_to_keep, write_incomplete
from ..convert import convert
from ..measuring.model import run_step
from ..tuning import TuneReport, save_tuned, tune
from .models import add_model, make_model, model_precision, run_model
from .options import Commands, add_seconds
from .outputs import Incomplete, check_outputs


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "tune",
        help="measure engines on a model's convolutions",
        description="Convert a model, run it once, time every engine that could be fastest on each "
        "of its convolutions, and add the choices to a file for conv2d_ext.load_tuned().",
    )
    add_model(parser)
    parser.add_argument("--train", action="store_true", help="tune the gradients too")
    add_seconds(parser, 0.01, "engine")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="add the choices to this file; choices that it has for other sizes, machines, "
        "numbers of threads and versions of convx are kept",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    check_outputs(arguments.out)
    rows_to_keep(arguments.out)
    reports: list[TuneReport] = []
    with model_precision(arguments):
        model, inputs = make_model(arguments)
        convert(model, policy="all")
        model.train(arguments.train)
        with (
            saving(lambda: _save_incomplete(arguments, reports)),
            tune(arguments.seconds, progress=True) as report,
        ):
            reports.append(report)
            run_model(lambda: run_step(model, inputs, {}, arguments.train))
    with uninterrupted():
        count = save_tuned(arguments.out)
    show(*report.parts())
    print(f"{count} choices in {arguments.out}, {len(report.choices)} of them measured now")
    return 0


def _save_incomplete(arguments: argparse.Namespace, reports: list[TuneReport]) -> None:
    (report,) = reports or [TuneReport()]
    incomplete = Incomplete(len(report.choices), report.total, "convolutions")
    if report.choices:
        incomplete.save(arguments.out, lambda path: write_incomplete(path, report.choices))
        show(*report.parts())
