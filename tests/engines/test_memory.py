"""Working memory on the CPU stays within 64 MiB beyond input and output, whatever the problem."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_tester import engine_names

LIMIT = 64 << 20
NOISE = 4 << 20  # thread stacks, the interpreter's own

# What a process measures of itself: the highest resident memory during one call, less the result.
MEASURE = """
import json, sys
import torch
from cases import Case, named
from engine_tester import DIRECTIONS, Problem
from layouts import LAYOUTS

def resident(field):
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024

request = json.loads(sys.argv[1])
layout = next(layout for layout in LAYOUTS if layout.name == request["layout"])
dtype = getattr(torch, request["dtype"])
torch.set_num_threads(request["threads"])

def measure(work):
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # forgets the highest so far
    before = resident("VmRSS")
    result = work()
    return resident("VmHWM") - before - result.numel() * result.element_size()

def measure_case(case):
    problem = Problem(case, dtype, layout, "cpu")
    return {d: measure(lambda: problem.run(d, request["engine"])) for d in DIRECTIONS}

measure_case(named("odd_channels")[0])  # threads and tables are made once
case = Case("measured", request["x"], request["w"], padding=request["padding"])
taken = measure_case(case)
taken["control"] = measure(lambda: torch.ones(100 << 20, dtype=torch.uint8)[:0].clone())
print(json.dumps(taken))
"""

# name: x, w, padding. Unfolded whole, the image would take 1.2 GB; packed whole, the filters 64 MiB
# in 16 bits and 128 MiB in float32.
BIG = {
    "image": ((1, 64, 512, 1024), (8, 64, 3, 3), (1, 1)),
    "filters": ((1, 1024, 6, 6), (2048, 1024, 4, 4), (1, 1)),
}


def measure(**request: object) -> dict[str, int]:
    tests = Path(__file__).resolve().parents[1]
    environment = os.environ | {
        # Freed memory goes back at once, so that what a call takes is seen.
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "PYTHONPATH": os.pathsep.join([str(tests), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(request)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("dtype", "layout", "threads"),
    [
        ("float32", "contiguous", 2),
        ("float32", "contiguous", 16),
        ("float32", "sliced_channels", 2),
        ("bfloat16", "channels_last", 2),
    ],
)
@pytest.mark.parametrize("big", BIG)
@pytest.mark.parametrize("engine", engine_names("cpu"))
def test_working_memory(engine, big, dtype, layout, threads):
    x, w, padding = BIG[big]
    taken = measure(
        engine=engine, dtype=dtype, layout=layout, threads=threads, x=x, w=w, padding=padding
    )
    seen = taken.pop("control")  # 100 MiB that were taken and given back
    assert abs(seen - (100 << 20)) <= NOISE, f"the measurement is off: {seen / 2**20:.1f} MiB"
    for direction, size in taken.items():
        assert size <= LIMIT + NOISE, f"{direction}: {size / 2**20:.1f} MiB"
