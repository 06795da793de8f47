"""What every GPU runs compiles for the oldest one that wheels have code for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MATRIX = json.loads((ROOT / ".github/build-matrix.json").read_text())["cuda"]
# Those of engines that are for some GPUs only take minutes.
FOLDERS = ("cuda", "kernels", "engines/cuda/bias_grad")
SOURCES = sorted(path for folder in FOLDERS for path in ROOT.glob(f"csrc/{folder}/*.cu"))
NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_compiles(source: Path, tmp_path: Path) -> None:
    oldest = MATRIX[-1]["archs"].split()[0].replace(".", "")
    made = tmp_path / "made.o"
    flags = ["-std=c++20", f"-arch=sm_{oldest}", "-I", str(ROOT / "csrc"), "-o", str(made)]
    done = subprocess.run([NVCC, "-c", *flags, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert made.exists()
