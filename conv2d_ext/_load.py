"""Loads the compiled libraries: the core, then the CUDA half where torch has its CUDA major."""

from __future__ import annotations

import json
import platform
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

OLDEST_TORCH = (2, 10)


@dataclass(frozen=True)
class LoadedLibraries:
    """The files that were loaded, and why there is no CUDA half where there is none."""

    core: Path
    cuda: Path | None
    why_no_cuda: str | None
    build: dict[str, Any] = field(default_factory=dict)


_loaded: LoadedLibraries | None = None


def load() -> LoadedLibraries:
    """Loads the libraries beside this file once, and says what was loaded."""
    global _loaded
    if _loaded is None:
        _loaded = load_from(Path(__file__).resolve().parent)
    return _loaded


def loaded_libraries() -> LoadedLibraries:
    """What was loaded when the package was imported."""
    return load()


def load_from(folder: Path) -> LoadedLibraries:
    """Loads the libraries in ``folder``. ImportError if the core cannot be loaded; a CUDA half
    that cannot be loaded leaves the CPU half working, with a warning."""
    build = read_build_info(folder)
    core = folder / "_convx_core.so"
    if not core.exists():
        raise ImportError(_explain(f"{core} does not exist", build, _how_to_build(folder)))
    if _numbers(torch.__version__)[:2] < OLDEST_TORCH:
        problem = f"torch {torch.__version__} is older than 2.10, the oldest that convx runs on"
        raise ImportError(_explain(problem, build, "pip install --upgrade 'torch>=2.10'"))
    try:
        torch.ops.load_library(str(core))
    except OSError as error:
        problem = f"{core.name} could not be loaded: {error.__cause__ or error}"
        raise ImportError(_explain(problem, build, _how_to_rebuild())) from error
    cuda, why_no_cuda = _load_cuda(folder, build)
    return LoadedLibraries(core, cuda, why_no_cuda, build)


def _load_cuda(folder: Path, build: dict[str, Any]) -> tuple[Path | None, str | None]:
    if torch.version.cuda is None:
        return None, f"torch {torch.__version__} is not a CUDA build"
    library = folder / f"_convx_cu{_numbers(torch.version.cuda)[0]}.so"
    if not library.exists():
        others = ", ".join(sorted(p.name for p in folder.glob("_convx_cu*.so"))) or "none"
        problem = f"{library.name} is not in this build of convx (CUDA libraries in it: {others})"
        return None, _explain(problem, build, "CONVX_CUDA=1 " + _how_to_rebuild())
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        problem = f"{library.name} could not be loaded: {error.__cause__ or error}"
        reason = _explain(problem, build, "CONVX_CUDA=1 " + _how_to_rebuild())
        warnings.warn(f"convx works on the CPU only: {reason}", RuntimeWarning, stacklevel=2)
        return None, reason
    return library, None


def read_build_info(folder: Path) -> dict[str, Any]:
    """What setup.py noted about the build: torch, cuda, archs, revision; or nothing."""
    try:
        info = json.loads((folder / "_build_info.json").read_text())
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _explain(problem: str, build: dict[str, Any], fix: str) -> str:
    if build:
        cuda = f"CUDA {build['cuda']} ({build.get('archs')})" if build.get("cuda") else "no CUDA"
        built = f"torch {build.get('torch')}, {cuda}, revision {build.get('revision') or 'unknown'}"
    else:
        built = "unknown (no _build_info.json)"
    found_cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    python = f"Python {platform.python_version()}"
    machine = f"{platform.system()} {platform.machine()}"
    return (
        f"{problem}\n"
        f"  built with: {built}; runs with every torch >= 2.10 of the same CUDA major\n"
        f"  found:      torch {torch.__version__}, {found_cuda}, {python}, {machine}\n"
        f"  to fix it:  {fix}"
    )


def _how_to_build(folder: Path) -> str:
    if (folder.parent / "setup.py").exists():
        return (
            f"this is a source checkout without compiled libraries: run `pip install -e . "
            f"--no-build-isolation` in {folder.parent}, or start Python in another folder to use "
            "an installed convx"
        )
    return _how_to_rebuild()


def _how_to_rebuild() -> str:
    return "pip install --force-reinstall --no-deps --no-build-isolation <convx checkout or sdist>"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
