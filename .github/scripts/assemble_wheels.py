"""Makes the wheels of a release out of the wheels built per machine type and CUDA version.

    python assemble_wheels.py BUILT OUT

BUILT has a folder per machine type and label (x86_64-cu126, aarch64-cu130, ...) with one wheel
each. OUT gets
  index/  each of them under a local version (1.2.3+cu126), so that their names differ
  pypi/   per machine type one wheel with libraries for several CUDA majors; the loader picks the
          one that torch's CUDA version needs
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import sys
import zipfile
from pathlib import Path

MATRIX = Path(__file__).resolve().parents[1] / "build-matrix.json"
BUILD_INFO = "conv2d_ext/_build_info.json"
# Every file gets zip's earliest date, so that the same contents give the same bytes.
DATE = (1980, 1, 1, 0, 0, 0)

Files = dict[str, bytes]


def read_wheel(path: Path) -> Files:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}


def write_wheel(files: Files, folder: Path) -> Path:
    """The wheel's name and RECORD follow from what is inside."""
    (info,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    record = f"{info}/RECORD"
    files = {name: content for name, content in files.items() if name != record}
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(content)])
    writer.writerow([record, "", ""])
    files[record] = rows.getvalue().encode()

    tags = re.findall(r"^Tag: (.+)$", files[f"{info}/WHEEL"].decode(), re.MULTILINE)
    python, abi, _ = tags[0].split("-")
    platforms = ".".join(tag.split("-")[2] for tag in tags)
    path = folder / f"{info.removesuffix('.dist-info')}-{python}-{abi}-{platforms}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, content)
    return path


def add_local_version(files: Files, label: str) -> Files:
    """The same wheel as version <public version>+<label>."""
    (info,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    name, version = info.removesuffix(".dist-info").split("-")
    renamed = {
        path.replace(f"{info}/", f"{name}-{version}+{label}.dist-info/"): content
        for path, content in files.items()
    }
    metadata = f"{name}-{version}+{label}.dist-info/METADATA"
    old, new = f"\nVersion: {version}\n", f"\nVersion: {version}+{label}\n"
    renamed[metadata] = renamed[metadata].decode().replace(old, new, 1).encode()
    return renamed


def merge(wheels: list[Files]) -> Files:
    """One wheel with every library. All files but the libraries have to agree. The core library is
    the first wheel's: the compilers of two images need not produce the same bytes."""
    merged = dict(wheels[0])
    for wheel in wheels[1:]:
        for name, content in wheel.items():
            is_free = name.endswith((".so", "/RECORD")) or name == BUILD_INFO
            if name not in merged:
                if not re.fullmatch(r"conv2d_ext/_convx_cu\d+\.so", name):
                    raise SystemExit(f"{name} is not in every wheel")
                merged[name] = content
            elif merged[name] != content and not is_free:
                raise SystemExit(f"{name} differs between the wheels")
    infos = [json.loads(wheel[BUILD_INFO]) for wheel in wheels]
    archs = dict.fromkeys(arch for info in infos for arch in info["archs"].split())
    joined = {
        **infos[0],
        "cuda": ", ".join(info["cuda"] for info in infos),
        "archs": " ".join(archs),
    }
    merged[BUILD_INFO] = json.dumps(joined).encode()
    majors = [info["cuda"].split(".")[0] for info in infos]
    if len(set(majors)) != len(majors):
        raise SystemExit(f"two wheels of one CUDA major cannot be merged: {joined['cuda']}")
    return merged


def main(built: Path, out: Path) -> None:
    matrix = json.loads(MATRIX.read_text())
    for platform in matrix["platforms"]:
        wheels = {}
        for entry in matrix["cuda"]:
            label = entry["label"]
            (path,) = (built / f"{platform}-{label}").glob("conv2d_ext-*.whl")
            if not path.stem.endswith(platform):
                raise SystemExit(f"{path.name} is not a wheel for {platform}")
            wheels[label] = read_wheel(path)
            print(write_wheel(add_local_version(wheels[label], label), out / "index"))
        print(write_wheel(merge([wheels[label] for label in matrix["pypi"]]), out / "pypi"))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
