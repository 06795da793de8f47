"""convx demo: three reference workloads against PyTorch."""

from __future__ import annotations

import argparse

from .._interrupts import saving
from .._shape import PASSES
from .._text import show
from ..bench import report
from ..bench.measure import Row, measure_all
from ..bench.shapes import load_suite
from ..measuring.case import Case
from ..measuring.roofline import measure_ceilings
from ..measuring.timing import Timer
from .options import Commands, add_device, add_seconds, peer_name
from .outputs import Incomplete


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="three reference workloads against PyTorch: engine, time, error",
        description="Measure three convolutions of the KernelBench suite (an asymmetric kernel, a "
        "large image, a dilated asymmetric kernel), forward and gradients, against PyTorch's own. "
        "On a CPU they are reduced in size.",
    )
    add_seconds(parser, 0.5, "measurement")
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
        for direction in PASSES
    ]
    rows: list[Row] = []

    def show_some() -> None:
        Incomplete(len(rows), len(cases), "cases").say()
        if rows:
            show(report.format_rows(rows, peer_name(device)))

    with saving(show_some):
        ceilings = measure_ceilings(device, precisions, arguments.seconds)
        timer = Timer(device, budget_s=arguments.seconds)
        measure_all(cases, ["auto"], timer, ceilings, rows=rows)
    machine = report.describe_machine(device)
    if gpu:
        print(f"the three workloads on {machine['device']}, against cuDNN")
    else:
        print(f"the three workloads, reduced for a CPU, on {machine['threads']} threads")
    show(report.format_rows(rows, peer_name(device)))
    return 0
