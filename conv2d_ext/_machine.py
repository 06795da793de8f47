"""The processor's name."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

# Linux reports only an ARM core's implementer and part. These parts are Arm's (implementer 0x41).
_ARM_PARTS = {
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
}


def cpu_name() -> str:
    """The name in /proc/cpuinfo, or the machine's architecture if there is none."""
    with contextlib.suppress(OSError):
        if name := read_name(Path("/proc/cpuinfo").read_text()):
            return name
    return platform.processor() or f"{platform.machine()} CPU"


def read_name(cpuinfo: str) -> str | None:
    """The first processor's name in the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if name := fields.get("model name"):
        return name
    implementer, part = fields.get("CPU implementer"), fields.get("CPU part")
    if implementer is None or part is None:
        return None
    if implementer == "0x41" and part in _ARM_PARTS:
        return f"Arm {_ARM_PARTS[part]}"
    return f"Arm core, implementer {implementer}, part {part}"
