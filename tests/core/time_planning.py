"""Prints what planning costs: `python tests/core/time_planning.py`, from the repository's root.

Compiles the planning side with -O3, as the wheel is, and times the choice and each engine's plan of
every suite shape, pass, precision and layout on one GPU's caps.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from conftest import load_planning
from problems import a100, h200, make_problem, rtx4090

from conv2d_ext.bench.shapes import load_suite

DIRECTIONS = ("forward", "input_grad", "weight_grad")
MODES = (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee"), ("float16", "ieee"))
LAYOUTS = ("nchw", "nhwc")
MACHINES = {"h200": h200, "a100": a100, "rtx4090": rtx4090}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", choices=MACHINES, default="h200")
    parser.add_argument(
        "--repeats", type=int, default=3, help="the shortest of so many runs counts"
    )
    parser.add_argument("--worst", type=int, default=15, help="rows of the list of long choices")
    arguments = parser.parse_args()
    core = load_planning()
    caps = MACHINES[arguments.machine](core)
    by_engine: dict[str, list[float]] = defaultdict(list)
    rows = []
    for shape in load_suite("full"):
        for direction in DIRECTIONS:
            for dtype, precision in MODES:
                for layout in LAYOUTS:
                    problem = make_problem(
                        core, shape, direction, dtype, precision, layout == "nhwc"
                    )
                    times = core.time_choice("cuda", problem, caps, arguments.repeats)
                    for name, microseconds in times.items():
                        by_engine[name].append(microseconds)
                    label = f"{shape.name} {direction} {dtype} {precision} {layout}"
                    rows.append((times.pop("auto"), label, times))
    print(f"{len(rows)} problems, {arguments.machine}; microseconds of planning")
    print(f"{'':18}{'mean':>8}{'median':>8}{'longest':>8}")
    for name, values in sorted(by_engine.items(), key=lambda item: -sum(item[1])):
        values.sort()
        mean, median = sum(values) / len(values), values[len(values) // 2]
        print(f"{name:18}{mean:8.1f}{median:8.1f}{values[-1]:8.1f}")
    rows.sort(key=lambda row: -row[0])
    print(f"above 100 us: {sum(row[0] > 100 for row in rows)}")
    for total, label, times in rows[: arguments.worst]:
        most = sorted(times.items(), key=lambda item: -item[1])[:3]
        print(f"{total:8.1f}  {label}: " + ", ".join(f"{name} {us:.1f}" for name, us in most))


if __name__ == "__main__":
    main()
