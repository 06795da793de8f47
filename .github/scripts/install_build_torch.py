"""Installs what a wheel is built and tested with: the build tools that requirements/release.txt
pins by hash, and the torch that build-matrix.json names for the nvcc of this machine. cibuildwheel
runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
MATRIX = FOLDER / "build-matrix.json"
TOOLS = FOLDER / "requirements/release.txt"
WHEELS = "https://download.pytorch.org/whl"


def find_entry(nvcc_version: str) -> dict[str, str]:
    entries = json.loads(MATRIX.read_text())["cuda"]
    for entry in entries:
        if entry["version"] == nvcc_version:
            return entry
    known = ", ".join(entry["version"] for entry in entries)
    raise SystemExit(f"nvcc has CUDA {nvcc_version}, and {MATRIX.name} knows only {known}")


def read_nvcc_version() -> str:
    nvcc = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"release (\d+\.\d+)", text)
    if not found:
        raise SystemExit(f"{nvcc} does not say its version: {text!r}")
    return found[1]


def main() -> None:
    entry = find_entry(read_nvcc_version())
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    torch = f"torch=={entry['torch']}"
    # The tools come first: torch then finds the Python packages that it needs, and leaves them.
    subprocess.run([*pip, "--require-hashes", "--requirement", str(TOOLS)], check=True)
    subprocess.run([*pip, torch, "--index-url", f"{WHEELS}/{entry['label']}"], check=True)


if __name__ == "__main__":
    main()
