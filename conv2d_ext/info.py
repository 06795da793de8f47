"""info: everything about an installation that a report of a problem should say."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from ._load import loaded_libraries
from ._machine import cpu_name
from ._precision import PRECISIONS
from ._shape import PASSES, Shape
from ._text import format_table
from ._version import __version__
from .bench.host import host_times
from .explain import explain_case
from .measuring.case import Case

# The layer that engines are asked about.
_SAMPLE = Shape.parse("n8c64h56w56 k64r3s3 pad1,1,1,1")
_VARIABLES = ("CONVX_SIMD_BYTES", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


def collect() -> dict[str, Any]:
    """Versions, libraries, devices, engines and host time, as plain values that JSON can hold."""
    libraries = loaded_libraries()
    devices = ["cpu"]
    if libraries.cuda is not None and torch.cuda.is_available():
        devices.append("cuda")
    return {
        "convx": __version__,
        "built_with": libraries.build,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": _driver_version(),
        "libraries": {
            "core": str(libraries.core),
            "cuda": str(libraries.cuda) if libraries.cuda else None,
            "why": libraries.why_no_cuda or f"torch has CUDA {torch.version.cuda}",
        },
        "cpu": {
            "name": cpu_name(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
        "gpus": _gpus(str(libraries.build.get("archs") or "")),
        "why_no_gpu": None if torch.cuda.is_available() else _why_no_gpu(),
        "engines": {device: _engines(torch.device(device)) for device in devices},
        "host_us": {device: host_times(torch.device(device)) for device in devices},
        "settings": {
            "torch.backends.cudnn.conv.fp32_precision": _fp32_precision("conv"),
            "torch.backends.cuda.matmul.fp32_precision": _fp32_precision("matmul"),
            "torch.backends.cudnn.enabled": torch.backends.cudnn.enabled,
            "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
            **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
        },
    }


def _fp32_precision(operation: str) -> str:
    return torch._C._get_fp32_precision_getter("cuda", operation)


def _driver_version() -> str | None:
    """NVIDIA's driver, as its module or nvidia-smi tells it."""
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text()
        if found := re.search(r"\b\d+\.\d+(\.\d+)?\b", text):
            return found[0]
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.split("\n")[0].strip() or None
    return None


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is not a CUDA build"
    return "torch finds no CUDA device that it can use"


def _gpus(archs: str) -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        supported, code = match_architecture((facts.major, facts.minor), archs)
        gpus.append(
            {
                "name": facts.name,
                "capability": f"{facts.major}.{facts.minor}",
                "memory_gib": round(facts.total_memory / 2**30, 1),
                "multiprocessors": facts.multi_processor_count,
                "supported": supported,
                "code": code,
            }
        )
    return gpus


def match_architecture(capability: tuple[int, int], archs: str) -> tuple[bool, str]:
    """Whether a library built for `archs` (as TORCH_CUDA_ARCH_LIST has them) runs on a GPU, and on
    which of them.

    Machine code runs on its own major version from its own minor version on, with an "a" behind it
    on exactly its own; PTX is compiled when the library is loaded, for all that is newer.
    """
    found = [
        ((int(major), int(minor)), letter, ptx)
        for major, minor, letter, ptx in re.findall(r"(\d+)\.(\d+)([a-z]?)(\+PTX)?", archs)
    ]
    if not found:
        return False, "the library does not say what it was built for"
    native = [
        (version, letter)
        for version, letter, _ in found
        if version == capability
        or (letter != "a" and version[0] == capability[0] and version <= capability)
    ]
    if native:
        (major, minor), letter = max(native)
        return True, f"machine code for {major}.{minor}{letter}"
    portable = [v for v, letter, ptx in found if ptx and not letter and v <= capability]
    if portable:
        return True, "PTX of {}.{}, compiled when it is loaded".format(*max(portable))
    return False, f"no code for this GPU among {archs}"


def _engines(device: torch.device) -> dict[str, dict[str, list[str]]]:
    """Per engine and precision, the directions in which it takes the sample."""
    table: dict[str, dict[str, list[str]]] = {}
    for precision in PRECISIONS:
        if precision == "tf32" and device.type == "cpu":
            continue  # the CPU engines have no TF32
        for direction in PASSES:
            explanation = explain_case(Case(_SAMPLE, direction, precision, "nchw"), device)
            for candidate in explanation.candidates:
                able = table.setdefault(candidate.name, {}).setdefault(precision, [])
                if not candidate.refusal:
                    able.append(direction + (" by name" if candidate.by_name_only else ""))
    return table


def format_info(info: dict[str, Any]) -> str:
    """The text of `convx info`, which people paste into a report of a problem."""
    built, libraries = info["built_with"], info["libraries"]
    lines = [
        ("convx", info["convx"]),
        ("built with", _built_text(built)),
        ("Python", f"{info['python']}, {info['platform']}"),
        ("torch", info["torch"]),
        ("CUDA", f"torch: {info['torch_cuda'] or 'none'}, library: {built.get('cuda') or 'none'}"),
        ("cuDNN", str(info["cudnn"] or "none")),
        ("driver", str(info["driver"] or "none")),
        ("library", libraries["core"]),
        ("CUDA library", "{}: {}".format(libraries["cuda"] or "not loaded", libraries["why"])),
        ("CPU", "{name}, {instructions}, {threads} threads".format(**info["cpu"])),
        *_gpu_lines(info),
        *((name, str(value)) for name, value in info["settings"].items()),
    ]
    width = max(len(name) for name, _ in lines)
    text = "\n".join(
        f"{name:{width}}  {value}".replace("\n", "\n" + " " * (width + 2)) for name, value in lines
    )
    parts = [text, *(_engine_table(table) for table in info["engines"].values())]
    parts.append("\n".join(_host_line(*item) for item in info["host_us"].items()))
    return "\n\n".join(parts)


def _built_text(built: dict[str, Any]) -> str:
    if not built:
        return "unknown: no _build_info.json beside the libraries"
    archs = f" for {built['archs']}" if built.get("archs") else ""
    cuda = f"CUDA {built['cuda']}{archs}" if built.get("cuda") else "no CUDA"
    return f"torch {built.get('torch')}, {cuda}, revision {built.get('revision')}"


def _gpu_lines(info: dict[str, Any]) -> list[tuple[str, str]]:
    if not info["gpus"]:
        return [("GPU", f"none: {info['why_no_gpu']}")]
    return [
        (
            f"GPU {index}",
            "{name}, {capability}, {multiprocessors} multiprocessors, {memory_gib} GiB: ".format(
                **gpu
            )
            + gpu["code"],
        )
        for index, gpu in enumerate(info["gpus"])
    ]


def _engine_table(table: dict[str, dict[str, list[str]]]) -> str:
    precisions = list(next(iter(table.values())))
    rows = [
        [engine, *(_able_text(able[precision]) for precision in precisions)]
        for engine, able in table.items()
    ]
    return format_table([f"engines ({_SAMPLE.text})", *precisions], rows, left=99)


def _able_text(directions: list[str]) -> str:
    if directions == [*PASSES]:
        return "all"
    return ", ".join(directions) or "no"


def _host_line(device: str, times: dict[str, float]) -> str:
    return (
        f"a small call on {device}: convx {times['ours_us']:.1f} us, F.conv2d "
        f"{times['torch_us']:.1f}; with gradients {times['ours_grad_us']:.1f} and "
        f"{times['torch_grad_us']:.1f}"
    )


def to_json(info: dict[str, Any]) -> str:
    return json.dumps(info, indent=1)
