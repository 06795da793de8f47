"""convx step: the time of a whole model's step, as it is and converted."""

from __future__ import annotations

import argparse

from .._text import show
from ..step import measure_steps
from .models import add_model, make_model
from .options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("step", help="a whole model's step, as it is and converted")
    add_model(parser)
    parser.add_argument("--seconds", type=float, default=0.5, help="spent on each measurement")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    model, inputs = make_model(arguments)
    show(measure_steps(model, *inputs, seconds=arguments.seconds))
    return 0
