"""Who may include whom in csrc; csrc/README.md tells why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
SOURCES = sorted(
    path for path in CSRC.rglob("*") if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".inl"}
)
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)

CUDA_HEADER = re.compile(r"^(cuda|cublas|cooperative_groups|mma\.h)")


def room_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def may_include(path: Path, own: bool, header: str) -> bool:
    room = room_of(path)
    is_plan = path.stem.endswith("_plan") or path.stem.endswith("_list")
    is_cuda = "cuda" in str(path.relative_to(CSRC)) or path.suffix in {".cu", ".cuh"}
    if not own:
        if header.startswith(("torch/", "ATen/", "c10/")):
            return room == "torch"
        if CUDA_HEADER.match(header):
            return room in {"device", "cuda"} or (room == "engines" and is_cuda and not is_plan)
        return True
    target = header.split("/")[0]
    if room == "core":
        return target == "core"
    if room == "engines":
        allowed = {"core", "engines"} | ({"device", "cuda"} if is_cuda and not is_plan else set())
        return target in allowed
    if room == "device":
        return target in {"core", "device"}
    if room == "cuda":
        return target in {"core", "cuda"}
    # The binding sees the doors of the rooms, not what is behind them.
    depth = header.count("/")
    return target in {"torch", "core"} or (target in {"engines", "cuda"} and depth == 1)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_includes(path: Path) -> None:
    for bracket, header in INCLUDE.findall(path.read_text()):
        own = bracket == '"'
        if own:
            assert (CSRC / header).exists(), f"{header} is not given relative to csrc"
        assert may_include(path, own, header), f"{path.relative_to(CSRC)} may not see {header}"


def test_there_is_something_to_check() -> None:
    assert {room_of(path) for path in SOURCES} >= {"core", "engines", "torch"}


def test_files_can_be_held_in_mind() -> None:
    for path in SOURCES:
        lines = path.read_text().count("\n")
        assert lines <= 450, f"{path.relative_to(CSRC)} has {lines} lines"
