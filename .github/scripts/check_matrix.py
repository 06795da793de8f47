"""Asks the package registries whether every torch that build-matrix.json names really exists.

    python check_matrix.py [--strict]

A pair such as (Python 3.10, torch 2.15.0) may look right and have no wheel; then a workflow fails
long after the matrix was changed. `pip index` lists the versions that a registry has for a Python
and a platform, without downloading them: PyPI for every pair, and PyTorch's index of each label
(cpu, cu126, ...) for the pairs that workflows install from there.

A registry that cannot be reached is skipped with a line that says so; with --strict it is an error.
Status 1 if a wheel is missing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MATRIX = Path(__file__).resolve().parents[1] / "build-matrix.json"
PYPI = "https://pypi.org/simple"
PYTORCH = "https://download.pytorch.org/whl"
# The Python that cibuildwheel builds with (pyproject.toml).
BUILD_PYTHON = "3.10"


class Wheel(NamedTuple):
    registry: str
    platform: str
    python: str
    torch: str  # with the local version that the registry gives it, such as 2.13.0+cpu

    def __str__(self) -> str:
        return f"torch {self.torch} for Python {self.python} on {self.platform} at {self.registry}"


def list_wheels(matrix: dict) -> list[Wheel]:
    """Every wheel of torch that a workflow installs, and the same versions at PyPI, where users
    get theirs."""
    pairs: list[tuple[str, str, str, str]] = []
    for row in matrix["cpu_tests"]:
        pairs += [(row["platform"], row["python"], row[key], "cpu") for key in ("torch", "other")]
    for row in matrix["compat"]:
        pairs.append((row["platform"], row["python"], row["torch"], row["label"]))
    for platform in matrix["platforms"]:
        for cuda in matrix["cuda"]:
            pairs.append((platform, BUILD_PYTHON, cuda["torch"], cuda["label"]))
    wheels = [Wheel(PYPI, platform, python, torch) for platform, python, torch, _ in pairs]
    wheels += [
        Wheel(f"{PYTORCH}/{label}", platform, python, f"{torch}+{label}")
        for platform, python, torch, label in pairs
    ]
    return list(dict.fromkeys(wheels))


def ask_registry(registry: str, platform: str, python: str, retries: int) -> set[str]:
    """The versions of torch with a wheel for this Python and platform. The set is also empty if the
    registry cannot be reached: pip does not tell the two apart."""
    number = python.rstrip("t")
    command = [
        *(sys.executable, "-m", "pip", "index", "versions", "torch", "--json"),
        *("--index-url", registry, "--only-binary", ":all:"),
        *("--retries", str(retries), "--timeout", "20"),
        *("--implementation", "cp", "--python-version", number),
        *("--abi", "cp" + python.replace(".", ""), "--platform", f"manylinux_2_28_{platform}"),
    ]
    # Only the registry itself may answer, not what this machine's settings add to it.
    hidden = {"PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_PRE"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment["PIP_CONFIG_FILE"] = os.devnull
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return set(json.loads(done.stdout)["versions"])
    if "No matching distribution" in done.stderr:
        return set()
    raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def find_missing(wheels: list[Wheel], retries: int) -> tuple[list[Wheel], list[str]]:
    """The wheels that their registries do not have, and the registries that did not answer. Every
    registry has some torch for some Python, so one that lists nothing was not reached."""
    questions = list(dict.fromkeys(wheel[:3] for wheel in wheels))
    with ThreadPoolExecutor(8) as pool:
        lists = pool.map(lambda question: ask_registry(*question, retries), questions)
        found = dict(zip(questions, lists, strict=True))
    reached = {registry for (registry, *_), versions in found.items() if versions}
    missing = [w for w in wheels if w.registry in reached and w.torch not in found[w[:3]]]
    silent = [w.registry for w in wheels if w.registry not in reached]
    return missing, list(dict.fromkeys(silent))


def check_pip() -> None:
    text = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], check=True, capture_output=True, text=True
    ).stdout
    version = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if version < (25, 1):
        raise SystemExit(f"check_matrix.py needs pip 25.1 or newer; this is {text.strip()}")


def main(strict: bool) -> int:
    check_pip()
    wheels = list_wheels(json.loads(MATRIX.read_text()))
    missing, silent = find_missing(wheels, retries=5 if strict else 0)
    for wheel in missing:
        print(f"does not exist: {wheel}")
    if silent:
        print(f"{'error' if strict else 'skipped'}: cannot reach {', '.join(silent)}")
    asked = [wheel for wheel in wheels if wheel.registry not in silent]
    print(f"{len(asked) - len(missing)} of {len(asked)} wheels of torch exist in their registries")
    return 1 if missing or (strict and silent) else 0


if __name__ == "__main__":
    sys.exit(main("--strict" in sys.argv[1:]))
