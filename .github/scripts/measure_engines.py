"""Times every engine on the layers of presets, and says where the planner's choice loses.

    python .github/scripts/measure_engines.py models_32 full --json engines.json
    python .github/scripts/measure_engines.py --read engines.json

Engines that are predicted to take much longer than the best one are left out. docs/developers says
what the numbers are for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from conv2d_ext._shape import DIRECTION_NAMES, LAYOUT_NAMES, PASSES, Shape
from conv2d_ext._text import format_table
from conv2d_ext.bench.report import describe_machine, geometric_mean
from conv2d_ext.bench.shapes import load_suite
from conv2d_ext.explain import explain_case
from conv2d_ext.measuring.case import Case, Operands, torch_precision
from conv2d_ext.measuring.timing import Timer

# Engines are timed up to this multiple of the best prediction.
_MOST = 1.7
# A choice that takes this much longer than the best engine counts as wrong.
_WRONG = 1.05


@dataclass(frozen=True)
class Timing:
    """What was predicted for an engine, and what it took, in microseconds."""

    predicted_us: float
    us: float


@dataclass(frozen=True)
class Row:
    """The engines of one pass of a layer; `chosen` is among them."""

    text: str
    direction: str
    precision: str
    layout: str
    chosen: str
    engines: dict[str, Timing]

    @property
    def best_us(self) -> float:
        return min(timing.us for timing in self.engines.values())

    @property
    def loss(self) -> float:
        """The time of the chosen engine over the best one's."""
        return self.engines[self.chosen].us / self.best_us

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.precision, LAYOUT_NAMES[self.layout], DIRECTION_NAMES[self.direction]


def measure_row(case: Case, device: torch.device, seconds: float) -> Row | None:
    """None where a single engine can compute the case."""
    said = explain_case(case, device)
    able = [c for c in said.candidates if not c.refusal and not c.by_name_only]
    best_us = min((c.predicted_us for c in able), default=0.0)
    near = [c for c in able if c.predicted_us <= _MOST * best_us]
    if len(near) < 2 or said.engine not in [c.name for c in near]:
        return None
    operands = Operands(case, device)
    timer = Timer(device, budget_s=seconds)
    with torch.no_grad(), torch_precision(case.precision):
        times = timer.medians_ms([operands.by_engine(c.name).ours for c in near])
    engines = {
        c.name: Timing(round(c.predicted_us, 2), round(1e3 * ms, 2))
        for c, ms in zip(near, times, strict=True)
    }
    return Row(case.shape.text, case.direction, case.precision, case.layout, said.engine, engines)


def cases_of(
    shapes: Iterable[Shape],
    directions: Sequence[str],
    precisions: Sequence[str],
    layouts: Sequence[str],
) -> Iterator[Case]:
    each = {shape.text: shape for shape in shapes}.values()
    for case in itertools.product(each, directions, precisions, layouts):
        yield Case(*case)


def write_rows(file: Path, rows: Sequence[Row], machine: dict[str, Any]) -> None:
    """A row is a line of the file."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    file.write_text(f'{{"machine": {json.dumps(machine)}, "rows": [\n{lines}\n]}}\n')


def read_rows(file: Path) -> list[Row]:
    rows = []
    for row in json.loads(file.read_text())["rows"]:
        engines = {name: Timing(**timing) for name, timing in row["engines"].items()}
        rows.append(Row(**{**row, "engines": engines}))
    return rows


def choices_table(rows: Sequence[Row]) -> str:
    """How much longer the chosen engines take than the best ones, by kind of layer."""
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = sorted((row for row in rows if row.kind == kind), key=lambda row: -row.loss)
        worst = mine[0]
        best = min(worst.engines, key=lambda name: worst.engines[name].us)
        lost = f"{worst.loss:.2f}x {worst.text}, {worst.chosen} instead of {best}"
        lines.append(
            [
                *kind,
                str(len(mine)),
                f"{100 * (geometric_mean(row.loss for row in mine) - 1):.1f}%",
                str(sum(row.loss > _WRONG for row in mine)),
                lost if worst.chosen != best else "-",
            ]
        )
    header = ["precision", "layout", "pass", "layers", "loss", "wrong", "worst"]
    return format_table(header, lines, left=3)


def predictions_table(rows: Sequence[Row]) -> str:
    """What engines take relative to their predictions: the median, and the spread around it."""
    lines = []
    for name in sorted({name for row in rows for name in row.engines}):
        timings = [row.engines[name] for row in rows if name in row.engines]
        logs = [math.log(timing.us / timing.predicted_us) for timing in timings]
        median = statistics.median(logs)
        spread = math.sqrt(statistics.fmean((each - median) ** 2 for each in logs))
        lines.append([name, str(len(logs)), f"{math.exp(median):.2f}", f"{100 * spread:.0f}%"])
    return format_table(["engine", "timings", "median", "spread"], lines, left=1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("presets", nargs="*", help="as `convx bench --preset` names them")
    parser.add_argument("--read", type=Path, help="a file of earlier timings; nothing is measured")
    parser.add_argument("--directions", default="fwd,dgrad", help=f"some of {', '.join(PASSES)}")
    parser.add_argument("--precisions", default="tf32,bf16")
    parser.add_argument("--layouts", default="nchw,nhwc")
    parser.add_argument("--seconds", type=float, default=0.004, help="spent on each engine")
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    if bool(arguments.presets) == bool(arguments.read):
        parser.error("name presets to measure, or a file to --read")
    if arguments.read:
        rows = read_rows(arguments.read)
    else:
        shapes = [shape for preset in arguments.presets for shape in load_suite(preset)]
        lists = [arguments.directions, arguments.precisions, arguments.layouts]
        cases = cases_of(shapes, *(text.split(",") for text in lists))
        measured = (measure_row(case, arguments.device, arguments.seconds) for case in cases)
        rows = [row for row in measured if row is not None]
        if arguments.json:
            write_rows(arguments.json, rows, describe_machine(arguments.device))
    print(choices_table(rows), predictions_table(rows), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
