"""The CPU engines with narrower vectors than this machine may have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from cases import CASES
from engine_tester import DIRECTIONS, Problem, engine_names
from layouts import COMMON

checked = 0
for case in CASES:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for layout in COMMON:
            problem = Problem(case, dtype, layout, "cpu")
            for direction in DIRECTIONS:
                for engine in engine_names("cpu"):
                    problem.check(direction, problem.run(direction, engine))
                    checked += 1
print(checked, "checked")
"""


@pytest.mark.parametrize("simd_bytes", [16, 32])
def test_every_case(simd_bytes: int) -> None:
    tests = Path(__file__).resolve().parents[1]
    # A process of its own: the choice is made once, when the library is first used.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tests)],
        env={**os.environ, "CONVX_SIMD_BYTES": str(simd_bytes)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 100
