"""Loads the compiled libraries: the core, then the CUDA half where torch has its CUDA major."""

from __future__ import annotations

import json
import platform
import re
import warnings
from dataclasses import dataclass, field
from importlib import metadata
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


def loaded_libraries() -> LoadedLibraries:
    """Loads the libraries beside this file at the first call."""
    global _loaded
    if _loaded is None:
        _loaded = load_from(Path(__file__).resolve().parent)
    return _loaded


def load_from(folder: Path) -> LoadedLibraries:
    """Loads the libraries in ``folder``. ImportError if the core cannot be loaded; where torch has
    CUDA and the CUDA half is missing or cannot be loaded, the CPU half works, with a warning."""
    build = read_build_info(folder)
    core = folder / "_convx_core.so"
    if not core.exists():
        raise ImportError(_explain(f"{core} does not exist", build, _how_to_build(folder, build)))
    if _numbers(torch.__version__)[:2] < OLDEST_TORCH:
        problem = f"torch {torch.__version__} is older than 2.10, the oldest that convx runs on"
        raise ImportError(_explain(problem, build, "pip install --upgrade 'torch>=2.10'"))
    try:
        torch.ops.load_library(str(core))
    except OSError as error:
        problem = f"{core.name} could not be loaded: {error.__cause__ or error}"
        raise ImportError(_explain(problem, build, _how_to_reinstall(folder, build))) from error
    cuda, why_no_cuda = _load_cuda(folder, build)
    if cuda is None and torch.version.cuda is not None:
        # The fifth frame from here is the program's `import conv2d_ext`.
        warnings.warn(f"convx works on the CPU only: {why_no_cuda}", RuntimeWarning, stacklevel=5)
    return LoadedLibraries(core, cuda, why_no_cuda, build)


def _load_cuda(folder: Path, build: dict[str, Any]) -> tuple[Path | None, str | None]:
    if torch.version.cuda is None:
        return None, f"torch {torch.__version__} is not a CUDA build"
    major = _numbers(torch.version.cuda)[0]
    library = folder / f"_convx_cu{major}.so"
    if not library.exists():
        others = ", ".join(sorted(p.name for p in folder.glob("_convx_cu*.so"))) or "none"
        problem = f"{library.name} is not in this build of convx (CUDA libraries in it: {others})"
        if build.get("why_cpu_only"):
            problem += f", which was built without CUDA: {build['why_cpu_only']}"
        return None, _explain(problem, build, _how_to_get_cuda(folder, build, major))
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        problem = f"{library.name} could not be loaded: {error.__cause__ or error}"
        return None, _explain(problem, build, _how_to_mend_cuda(folder, build, major))
    return library, None


def read_build_info(folder: Path) -> dict[str, Any]:
    """The facts that setup.py noted about the build: torch, cuda, archs, why_cpu_only, revision. An
    empty dict if there are none."""
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


def _how_to_build(folder: Path, build: dict[str, Any]) -> str:
    if (folder.parent / "setup.py").exists():
        return (
            f"this is a source checkout without compiled libraries: run `pip install -e . "
            f"--no-build-isolation` in {folder.parent}, or start Python in another folder to use "
            "an installed convx"
        )
    return _how_to_reinstall(folder, build)


def _how_to_reinstall(folder: Path, build: dict[str, Any]) -> str:
    if _was_built_here(folder, build):
        return (
            "build it again, with the torch that is installed: `pip install --force-reinstall "
            "--no-deps --no-build-isolation .` in a checkout of convx"
        )
    return "pip install --force-reinstall --no-deps conv2d-ext"


def _how_to_get_cuda(folder: Path, build: dict[str, Any], major: int) -> str:
    if _was_built_here(folder, build):
        return (
            f"put the nvcc of CUDA {major} on PATH, then run `CONVX_CUDA=1 pip install "
            "--force-reinstall --no-deps --no-build-isolation .` in a checkout of convx: it "
            "builds for the torch that is installed, or says why it cannot"
        )
    return (
        "`pip install --force-reinstall --no-deps conv2d-ext`: the wheel on PyPI has CUDA 12 and "
        "CUDA 13; wheels from another index, such as +cu130, have one of them"
    )


def _how_to_mend_cuda(folder: Path, build: dict[str, Any], major: int) -> str:
    return (
        "the CUDA libraries that it needs come with torch: `pip install --force-reinstall torch`; "
        f"if that does not help, {_how_to_get_cuda(folder, build, major)}"
    )


def _was_built_here(folder: Path, build: dict[str, Any]) -> bool:
    """Whether the package was built from source on this machine, and not installed from a wheel
    of a release."""
    # Every wheel of a release has a CUDA half.
    if build.get("why_cpu_only") or (folder.parent / "setup.py").exists():
        return True
    try:
        installed = metadata.distribution("conv2d-ext")
        # pip notes the origin here if it was given a folder, a repository or a file, not a name.
        origin = json.loads(installed.read_text("direct_url.json") or "{}").get("url", "")
    except (metadata.PackageNotFoundError, ValueError):
        return False
    is_this_one = Path(str(installed.locate_file("conv2d_ext"))).resolve() == folder
    return is_this_one and bool(origin) and not origin.endswith(".whl")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
