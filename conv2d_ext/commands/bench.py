"""convx bench: measure against PyTorch's own convolution."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch

from .._text import show
from ..bench import report
from ..bench.host import host_times
from ..bench.measure import DIRECTIONS, LAYOUTS, PEERS, Case, Row, measure_all
from ..bench.plot import require_matplotlib, write_plot
from ..bench.precisions import PRECISIONS, TOLERANCES
from ..bench.roofline import measure_ceilings
from ..bench.shapes import load_suite, suite_names
from ..bench.timing import Timer
from .options import Commands, add_device, choices, peer_name, shape


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure against PyTorch's own convolution")
    parser.add_argument("shapes", nargs="*", type=shape, help="by name or text; default: a preset")
    parser.add_argument(
        "--preset",
        "--suite",
        type=choices(suite_names()),
        help="one, or some separated by commas; default: full, or cpu without a GPU",
    )
    parser.add_argument("--batch", type=int, help="images, in place of the shapes' own number")
    parser.add_argument("--directions", type=choices(DIRECTIONS), default=list(DIRECTIONS))
    parser.add_argument("--bias", action="store_true", help="in the forward pass")
    parser.add_argument("--precisions", type=choices(PRECISIONS), default=["ieee"])
    parser.add_argument("--layouts", type=choices(LAYOUTS), default=["nchw"])
    parser.add_argument(
        "--vs",
        type=choices(PEERS),
        default=["cudnn"],
        help="cudnn (on the CPU: PyTorch's own), which is always measured, cublas (the product "
        "that a 1x1 layer is) and inductor (torch.compile)",
    )
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        default=["auto"],
        help="auto (the heuristic's choice) or names, separated by commas; engine:* with variants",
    )
    parser.add_argument(
        "--tune", action="store_true", help="let auto be what tune() measures to be the fastest"
    )
    parser.add_argument("--cold", action="store_true", help="empty the L2 cache before each call")
    parser.add_argument(
        "--graphs", action="store_true", help="time CUDA graphs of calls: for short ones, on a GPU"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="spent on each measurement")
    add_device(parser)
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--csv", type=Path, help="write all rows to this file")
    parser.add_argument("--plot", type=Path, help="draw speed-ups and roofline (.png, .svg, .pdf)")
    parser.add_argument("--compare", type=Path, help="show changes against this earlier file")
    parser.add_argument("--require", type=float, help="fail if a chosen engine's ratio is below")
    parser.add_argument("--require-mean", type=float, help="fail if their mean is below")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.plot:
        require_matplotlib()  # before the time is spent
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = arguments.device
    timer = Timer(device, arguments.cold, arguments.seconds, arguments.graphs)
    ceilings = measure_ceilings(device, arguments.precisions, arguments.seconds)
    rows = measure_all(
        _cases(arguments), arguments.engines, timer, ceilings, arguments.vs, arguments.tune
    )
    host = host_times(device)
    show(report.format_rows(rows, peer_name(device)))
    print()
    show(report.format_means(rows))
    print(
        f"\nhost time of a call under no_grad: convx {host['ours_us']:.1f} us, "
        f"F.conv2d {host['torch_us']:.1f} us"
    )
    machine = report.describe_machine(device)
    extra = {
        "cold": arguments.cold,
        "graphs": arguments.graphs,
        "tuned": arguments.tune,
        "host": host,
        "ceilings": ceilings,
    }
    if arguments.json:
        report.write_json(arguments.json, rows, machine, extra)
    if arguments.csv:
        report.write_csv(arguments.csv, rows)
    if arguments.plot:
        write_plot(arguments.plot, rows, {"machine": machine, **extra})
    if arguments.compare:
        show("\n" + report.format_comparison(arguments.compare, rows))
    return _judge(rows, arguments)


def _cases(arguments: argparse.Namespace) -> list[Case]:
    default = "full" if arguments.device.type == "cuda" else "cpu"
    presets = arguments.preset or [default]
    shapes = arguments.shapes or [shape for preset in presets for shape in load_suite(preset)]
    if arguments.batch is not None:
        shapes = [shape.with_batch(arguments.batch) for shape in shapes]
    product = itertools.product(
        shapes, arguments.precisions, arguments.layouts, arguments.directions
    )
    return [Case(s, d, p, layout, bias=arguments.bias) for s, p, layout, d in product]


def _judge(rows: list[Row], arguments: argparse.Namespace) -> int:
    failed = False
    for row in rows:
        if not row.rel_error <= TOLERANCES[row.precision]:
            print(f"wrong: {row.shape} {row.direction} {row.precision} error {row.rel_error:.1e}")
            failed = True
        if arguments.require is not None and row.chosen and row.ratio < arguments.require:
            print(f"below --require: {row.shape} {row.direction} {row.precision} {row.ratio:.2f}x")
            failed = True
    mean = report.geometric_mean(row.ratio for row in rows if row.chosen)
    if arguments.require_mean is not None and mean < arguments.require_mean:
        print(f"below --require-mean: the geometric mean is {mean:.2f}x")
        failed = True
    return 1 if failed else 0
