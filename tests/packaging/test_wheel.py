"""What is inside the wheel. It is taken from CONVX_WHEEL, or from dist/."""

import base64
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from fatbin import expected_entries, list_containers

import conv2d_ext

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = os.environ.get("CONVX_WHEEL")
    candidates = [Path(found)] if found else sorted(ROOT.glob("dist/conv2d_ext-*.whl"))
    if not candidates:
        pytest.skip("no wheel: `make wheel` builds it, CONVX_WHEEL names another")
    return candidates[-1]


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def libraries(unpacked) -> list[Path]:
    return sorted(unpacked.rglob("*.so"))


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def metadata(unpacked: Path, name: str) -> str:
    return next(unpacked.glob(f"conv2d_ext-*.dist-info/{name}")).read_text()


def build_info(unpacked: Path) -> dict:
    return json.loads((unpacked / "conv2d_ext/_build_info.json").read_text())


def cuda_versions(unpacked: Path) -> list[str]:
    """One for a wheel as built, several for the one that is assembled for PyPI, or none."""
    return re.findall(r"\d+\.\d+", build_info(unpacked)["cuda"] or "")


def test_tag_serves_every_python(wheel, unpacked):
    assert re.fullmatch(r"conv2d_ext-[0-9a-z.+]+-py3-none-(manylinux|linux)\w+\.whl", wheel.name)
    assert "Tag: py3-none-" in metadata(unpacked, "WHEEL")
    assert "Root-Is-Purelib: false" in metadata(unpacked, "WHEEL")


def test_metadata(unpacked):
    lines = metadata(unpacked, "METADATA").splitlines()
    assert "Name: conv2d-ext" in lines
    (version,) = [line for line in lines if line.startswith("Version: ")]
    # Wheels of our own index have a local version.
    labels = "|".join("cu" + number.replace(".", "") for number in cuda_versions(unpacked))
    pattern = re.escape(f"Version: {conv2d_ext.__version__}") + rf"(\+({labels}))?"
    assert re.fullmatch(pattern, version), version
    assert "Requires-Python: >=3.10" in lines
    required = [line for line in lines if line.startswith("Requires-Dist:") and "extra" not in line]
    assert required == ["Requires-Dist: torch>=2.10"], "a pin would replace the user's torch"
    assert "convx = conv2d_ext.cli:main" in metadata(unpacked, "entry_points.txt")


def test_licence(unpacked):
    lines = metadata(unpacked, "METADATA").splitlines()
    assert "License-Expression: BSD-3-Clause" in lines
    assert "License-File: LICENSE" in lines
    assert metadata(unpacked, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def test_the_page_on_pypi_has_no_relative_links(unpacked):
    """PyPI shows the README without the files around it."""
    lines = metadata(unpacked, "METADATA").splitlines()
    assert "Description-Content-Type: text/markdown" in lines
    urls = dict(line.split(": ", 1)[1].split(", ") for line in lines if "Project-URL: " in line)
    assert set(urls) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    text = "\n".join(lines)
    links = re.findall(r"\]\(([^)\s]+)", text)
    links += re.findall(r"(?:src|href|srcset)=[\"'](.+?)[\"']", text)
    assert len(links) > 5, "the README has links"
    assert not [link for link in links if not re.match(r"(https://|mailto:|#)", link)]
    ours = [link.removeprefix(urls["Source"]) for link in links if link.startswith(urls["Source"])]
    for link in ours:
        _, _, tag, path = link.split("/", 3)
        assert tag == f"v{conv2d_ext.__version__}"
        assert (ROOT / path.split("#")[0]).exists(), path


def test_files_are_those_of_the_package(unpacked):
    inside = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
    inside = {name for name in inside if ".dist-info/" not in name}
    expected = {"conv2d_ext/_build_info.json", "conv2d_ext/_convx_core.so", "conv2d_ext/py.typed"}
    majors = {version.split(".")[0] for version in cuda_versions(unpacked)}
    expected |= {f"conv2d_ext/_convx_cu{major}.so" for major in majors}
    for pattern in ("*.py", "bench/*.json"):
        found = (ROOT / "conv2d_ext").rglob(pattern)
        expected |= {path.relative_to(ROOT).as_posix() for path in found}
    assert inside == expected


def test_record_lists_every_file(unpacked):
    inside = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
    rows = list(csv.reader(metadata(unpacked, "RECORD").splitlines()))
    assert {name for name, _, _ in rows} == inside
    for name, digest, _ in rows:
        if digest:
            found = hashlib.sha256((unpacked / name).read_bytes()).digest()
            want = "sha256=" + base64.urlsafe_b64encode(found).rstrip(b"=").decode()
            assert digest == want, name


def test_build_info_says_what_it_was_built_with(unpacked):
    info = build_info(unpacked)
    assert set(info) == {"torch", "cuda", "archs", "why_cpu_only", "revision"}
    assert info["torch"]
    assert bool(info["cuda"]) == bool(info["archs"]) == (info["why_cpu_only"] is None)


def test_cuda_libraries_have_the_architectures_they_list(unpacked, libraries):
    """Every kernel for every GPU, but for those of one architecture's own instructions."""
    expected = expected_entries(build_info(unpacked)["archs"]) if cuda_versions(unpacked) else set()
    for library in libraries:
        if "_cu" not in library.name:
            continue
        containers = list_containers(library)
        assert set.union(*containers) == expected, library.name
        for container in containers:
            assert container == expected, library.name


def test_libraries_need_neither_python_nor_a_driver(libraries):
    assert libraries
    for library in libraries:
        dynamic = tool("readelf", "-d", str(library))
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
        allowed = r"libtorch(_cpu)?|libc10|libstdc\+\+|libgcc_s|libc|libm|libpthread|ld-linux.*"
        if "_cu" in library.name:
            allowed += r"|libtorch_cuda|libc10_cuda|libcudart|libcublas(Lt)?"
        strangers = [n for n in needed if not re.fullmatch(rf"({allowed})\.so[.\d]*", n)]
        assert not strangers, f"{library.name} needs {strangers}"
        assert "RPATH" not in dynamic, library.name
        assert "RUNPATH" not in dynamic, library.name


def test_libraries_use_no_python_symbols(libraries):
    for library in libraries:
        undefined = tool("nm", "-D", "--undefined-only", str(library)).split()
        assert not [s for s in undefined if re.match(r"_?Py[A-Z_]", s)], library.name


def test_libraries_use_only_the_stable_abi(libraries):
    """C++ symbols of torch change from version to version; those of its C shim do not."""
    for library in libraries:
        undefined = tool("nm", "-D", "--undefined-only", str(library)).split()
        unstable = [s for s in undefined if re.match(r"_ZNK?(St.*)?(2at|3c10|5torch)", s)]
        assert not unstable, f"{library.name}: {unstable}"


def test_libraries_export_nothing_of_ours(libraries):
    """Both libraries hold the core: exported, one library would call into the other's copy."""
    for library in libraries:
        exported = tool("nm", "-D", "--defined-only", str(library)).split()
        assert not [s for s in exported if re.match(r"_Z[A-Z]*5convx", s)], library.name


def test_no_paths_of_the_build_machine(unpacked):
    torch_folder = str(Path(torch.__file__).parents[1])
    paths = {str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix, torch_folder}
    paths -= {"/", "/usr", "/usr/local"}
    # Folders where CI builds; the character before tells a path from a web address.
    elsewhere = re.compile(rb"(?<![\w.-])/(home|root|tmp|project|__w|Users)/[\w.-]+")
    for file in unpacked.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [path for path in paths if path.encode() in content], file.name
            assert not elsewhere.search(content), (file.name, elsewhere.search(content)[0])


def test_size(wheel):
    assert wheel.stat().st_size < 60 * MEGABYTE


@pytest.mark.skipif("PYTHONSAFEPATH" not in os.environ, reason="only in `make test`")
def test_the_suite_tests_the_installed_package():
    assert Path(conv2d_ext.__file__).resolve().parent != ROOT / "conv2d_ext"
