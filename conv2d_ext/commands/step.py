"""convx step: the time of a whole model's step, as it is and converted."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .._text import show
from ..bench.report import describe_machine
from ..step import measure_steps
from .models import add_model, make_model
from .options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("step", help="a whole model's step, as it is and converted")
    add_model(parser)
    parser.add_argument("--seconds", type=float, default=0.5, help="spent on each measurement")
    parser.add_argument("--json", type=Path, help="add the result to this file, as a line of JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    model, inputs = make_model(arguments)
    report = measure_steps(model, *inputs, seconds=arguments.seconds)
    show(report)
    if arguments.json:
        asked = {name: getattr(arguments, name) for name in ("model", "input", "dtype", "layout")}
        line = {**asked, **report.to_dict(), "machine": describe_machine(arguments.device)}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        with arguments.json.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 0
