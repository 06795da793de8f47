"""convx scan: every convolution of a model, and what convert() would save."""

from __future__ import annotations

import argparse

from .._text import show
from ..bench.measure import DIRECTIONS
from ..scan import scan
from .models import add_model, make_model
from .options import Commands, choices


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "scan", help="every convolution of a model, and what it would gain"
    )
    add_model(parser)
    parser.add_argument("--directions", type=choices(DIRECTIONS), default=["fwd"])
    parser.add_argument("--seconds", type=float, default=0.1, help="spent on each measurement")
    parser.add_argument("--train", action="store_true", help="leave the model in training mode")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    model, inputs = make_model(arguments)
    model.train(arguments.train)
    show(scan(model, *inputs, directions=arguments.directions, seconds=arguments.seconds))
    return 0
