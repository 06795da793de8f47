"""Builds the test-only module over csrc/core and the plan side of every engine."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
EMULATED = HERE / "emulated_cuda"


def plan_sources() -> list[Path]:
    """Sources that compile without torch and without CUDA, less the launch side."""
    launching = ("launch", "blas_scope")
    return [
        path
        for path in CSRC.rglob("*.cpp")
        if "torch" not in path.parts and not any(word in path.stem for word in launching)
    ]


def compile_module(sources: list[Path], library: Path, level: str) -> None:
    import pybind11

    flags = ["-std=c++20", level, "-fPIC", "-fvisibility=hidden"]
    # Before csrc: headers of a GPU's own instructions are replaced.
    flags += [f"-I{EMULATED}", f"-I{CSRC}", f"-I{HERE}"]
    includes = ["-isystem", pybind11.get_include()]
    includes += ["-isystem", sysconfig.get_path("include")]
    compiler = os.environ.get("CXX", "c++")

    def compile_one(source: Path) -> str:
        # Families may have files of the same name.
        inner = source.relative_to(HERE.parents[1]).with_suffix(".o")
        target = library.parent / "_".join(inner.parts)
        command = [compiler, *flags, *includes, "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    subprocess.run([compiler, "-shared", *objects, "-o", str(library)], check=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules may leave some of their tests out: is_of_the_sample."""
    left_out = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and not getattr(item.module, "is_of_the_sample", lambda _: True)(item)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        without = set(left_out)
        items[:] = [item for item in items if item not in without]


def load_module(name: str, own_sources: list[Path], level: str) -> ModuleType:
    """A module over own_sources and the planning side, compiled once per state of the sources."""
    own = [*HERE.rglob("*.h"), *HERE.rglob("*.cpp"), *EMULATED.rglob("*"), HERE / "conftest.py"]
    everything = sorted(p for p in {*CSRC.rglob("*"), *own} if p.is_file())
    contents = b"".join(p.read_bytes() for p in everything)
    digest = hashlib.sha256(contents + (name + level).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"convx-core-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{name}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            compile_module([*own_sources, *plan_sources()], library, level)
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def core() -> ModuleType:
    """The planning side and the emulated kernels, shared by test processes."""
    pytest.importorskip("pybind11")
    return load_module("convx_core", [*HERE.glob("*.cpp")], "-O1")


def load_planning() -> ModuleType:
    """The planning side alone, compiled as the wheel is."""
    own = [HERE / "bind_choice.cpp", HERE / "bind_problem.cpp"]
    return load_module("convx_planning", [*own, HERE / "planning" / "planning_module.cpp"], "-O3")
