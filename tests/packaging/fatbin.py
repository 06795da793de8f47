"""Which GPUs the code inside a CUDA library is for, read from the library itself: a container per
source file, each a header and then one entry per architecture."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

CONTAINER_MAGIC = 0xBA55ED50
PTX, CUBIN = 1, 2  # kinds of an entry


def read_section(library: Path, name: str) -> bytes:
    listing = subprocess.run(
        ["readelf", "-SW", str(library)], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(rf"{re.escape(name)}\s+PROGBITS\s+\w+ (\w+) (\w+)", listing)
    assert found, f"{library.name} has no section {name}"
    offset, size = (int(number, 16) for number in found.groups())
    return library.read_bytes()[offset : offset + size]


def list_containers(library: Path) -> list[set[tuple[int, int]]]:
    """For each container its entries' kinds and architectures, such as (CUBIN, 90)."""
    section = read_section(library, ".nv_fatbin")
    containers = []
    position = 0
    while position + 16 <= len(section):
        magic, _, header_size, size = struct.unpack_from("<IHHQ", section, position)
        if magic != CONTAINER_MAGIC:
            position += 8  # containers are aligned
            continue
        entry, position = position + header_size, position + header_size + size
        entries = set()
        while entry < position:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", section, entry)
            (arch,) = struct.unpack_from("<I", section, entry + 28)
            entries.add((kind, arch))
            entry += entry_header + entry_size
        containers.append(entries)
    return containers


def expected_entries(arch_list: str) -> set[tuple[int, int]]:
    """What TORCH_CUDA_ARCH_LIST asks for: "8.0+PTX 9.0a" is code for 80 and 90 and PTX for 80."""
    entries = set()
    for word in re.split(r"[ ;]+", arch_list):
        major, minor, _, ptx = re.fullmatch(r"(\d+)\.(\d+)([af]?)(\+PTX)?", word).groups()
        arch = int(major) * 10 + int(minor)
        entries |= {(CUBIN, arch), (PTX, arch)} if ptx else {(CUBIN, arch)}
    return entries
