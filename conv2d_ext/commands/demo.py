"""convx demo: the three seed workloads."""

from __future__ import annotations

import argparse

from .._text import show
from ..bench import report
from ..bench.measure import DIRECTIONS, Case, measure_all
from ..bench.roofline import measure_ceilings
from ..bench.shapes import load_suite
from ..bench.timing import Timer
from .options import Commands, add_device, peer_name


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("demo", help="the three seed workloads: engine, error, time")
    add_device(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    device = arguments.device
    gpu = device.type == "cuda"
    precisions = ["ieee", "tf32"] if gpu else ["ieee"]
    cases = [
        Case(shape, direction, precision, "nchw")
        for shape in load_suite("seed" if gpu else "seed_cpu")
        for precision in precisions
        for direction in DIRECTIONS
    ]
    rows = measure_all(cases, ["auto"], Timer(device), measure_ceilings(device, precisions))
    machine = report.describe_machine(device)
    if gpu:
        print(f"the three workloads on {machine['device']}, against cuDNN")
    else:
        print(f"the three workloads, reduced for a CPU, on {machine['threads']} threads")
    show(report.format_rows(rows, peer_name(device)))
    return 0
