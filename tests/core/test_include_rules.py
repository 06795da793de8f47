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

# The folders that a folder's files may include besides itself.
MAY_SEE = {
    "core": set(),
    "planning": {"core"},
    "device": {"core"},
    "cuda": {"core", "planning"},
    "kernels": {"core", "planning", "device", "cuda"},
    "engines": {"core", "planning", "device", "cuda", "kernels"},
    # The binding sees the doors of the rooms, not what is behind them.
    "torch": {"core", "engines", "cuda"},
}
CUDA_ROOMS = {"device", "cuda", "kernels"}
# Files outside of those rooms that run on the launching side.
LAUNCHES = re.compile(r"(launch|blas_scope)[^/]*\.(cpp|h)$|\.cuh?$")


def room_of(name: str) -> str:
    return name.split("/")[0]


def family_of(name: str) -> str:
    """The folder of an engine family (all CPU engines are one), or nothing."""
    parts = name.split("/")
    if parts[:2] == ["engines", "cpu"]:
        return "engines/cpu"
    return "/".join(parts[:3]) if parts[:2] == ["engines", "cuda"] and len(parts) > 3 else ""


def includes_of(name: str) -> list[tuple[bool, str]]:
    found = INCLUDE.findall((CSRC / name).read_text())
    return [(bracket == '"', header) for bracket, header in found]


def is_launching(name: str) -> bool:
    return room_of(name) in CUDA_ROOMS or LAUNCHES.search(name) is not None


def may_include(name: str, own: bool, header: str) -> bool:
    room = room_of(name)
    if not own:
        if header.startswith(("torch/", "ATen/", "c10/")):
            return room == "torch"
        return not CUDA_HEADER.match(header) or is_launching(name)
    target = room_of(header)
    if target != room and target not in MAY_SEE[room]:
        return False
    if room == "torch":
        return target in {"torch", "core"} or header.count("/") == 1
    if room == "engines":
        other = family_of(header)
        # Only the launchers and the lists of a device see inside a family.
        return not other or not family_of(name) or other == family_of(name)
    return True


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_includes(path: Path) -> None:
    name = str(path.relative_to(CSRC))
    for own, header in includes_of(name):
        if own:
            assert (CSRC / header).exists(), f"{header} is not given relative to csrc"
        assert may_include(name, own, header), f"{name} may not see {header}"


PLANNERS = [
    name
    for path in SOURCES
    if path.suffix == ".cpp"
    and room_of(name := str(path.relative_to(CSRC))) in {"core", "engines"}
    and not is_launching(name)
]


@pytest.mark.parametrize("name", PLANNERS)
def test_planners_see_no_cuda(name: str) -> None:
    """Whatever plans is tested with a plain compiler, so no header on its way may need CUDA."""
    ways = {name: name}
    waiting = [name]
    while waiting:
        file = waiting.pop()
        for own, header in includes_of(file):
            way = f"{ways[file]} > {header}"
            assert own or not CUDA_HEADER.match(header), way
            if own:
                assert room_of(header) not in {"device", "cuda"}, way
                assert not header.endswith(".cuh"), way
                if header not in ways:
                    ways[header] = way
                    waiting.append(header)


def test_there_is_something_to_check() -> None:
    assert {room_of(str(path.relative_to(CSRC))) for path in SOURCES} == set(MAY_SEE)
    assert len(PLANNERS) > 40


def test_families_are_folders() -> None:
    """csrc/engines holds the launchers and the list; kernels that families share lie in kernels."""
    loose = {path.name for path in (CSRC / "engines").iterdir() if path.is_file()}
    assert loose == {"engines.h", "launch_cpu.cpp", "launch_cuda.cpp"}


def test_files_can_be_held_in_mind() -> None:
    for path in SOURCES:
        lines = path.read_text().count("\n")
        assert lines <= 450, f"{path.relative_to(CSRC)} has {lines} lines"
