"""The scripts that turn built wheels into a release."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LABELS = {"cu126": "12.6", "cu128": "12.8", "cu130": "13.0"}


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / f".github/scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


assemble = load_script("assemble_wheels")
index = load_script("make_index")
install = load_script("install_build_torch")


def make_files(version: str, archs: str = "8.0+PTX 9.0a") -> dict[str, bytes]:
    info = {"torch": "2.10.0", "cuda": version, "archs": archs, "revision": "abc1234"}
    metadata = "Metadata-Version: 2.4\nName: convx\nVersion: 1.2.3\nRequires-Dist: torch>=2.10\n"
    tag = "py3-none-manylinux_2_28_x86_64"
    return {
        "conv2d_ext/__init__.py": b"",
        "conv2d_ext/_build_info.json": json.dumps(info).encode(),
        "conv2d_ext/_convx_core.so": f"core built beside CUDA {version}".encode(),
        f"conv2d_ext/_convx_cu{version[:2]}.so": f"CUDA {version}".encode(),
        "convx-1.2.3.dist-info/METADATA": metadata.encode(),
        "convx-1.2.3.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n".encode(),
        "convx-1.2.3.dist-info/RECORD": b"of the wheel before",
    }


@pytest.fixture
def assembled(tmp_path) -> Path:
    for label, version in LABELS.items():
        assemble.write_wheel(make_files(version), tmp_path / "built" / label)
    assemble.main(tmp_path / "built", tmp_path / "dist")
    return tmp_path / "dist"


def check_record(files: dict[str, bytes]) -> None:
    (record,) = [name for name in files if name.endswith("/RECORD")]
    rows = [row.split(",") for row in files[record].decode().splitlines()]
    assert {name for name, _, _ in rows} == set(files)
    for name, digest, size in rows:
        if name == record:
            assert (digest, size) == ("", "")
            continue
        want = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode()
        assert digest == "sha256=" + want.rstrip("=")
        assert int(size) == len(files[name])


def test_names_of_the_wheels(assembled):
    tag = "py3-none-manylinux_2_28_x86_64"
    names = {path.relative_to(assembled).as_posix() for path in assembled.rglob("*.whl")}
    assert names == {f"index/convx-1.2.3+{label}-{tag}.whl" for label in LABELS} | {
        f"pypi/convx-1.2.3-{tag}.whl"
    }


def test_wheels_of_the_index_have_a_local_version(assembled):
    for label, version in LABELS.items():
        (path,) = assembled.glob(f"index/*+{label}-*.whl")
        files = assemble.read_wheel(path)
        check_record(files)
        metadata = files[f"convx-1.2.3+{label}.dist-info/METADATA"].decode()
        assert f"Version: 1.2.3+{label}\n" in metadata
        assert "Requires-Dist: torch>=2.10\n" in metadata
        assert files[f"conv2d_ext/_convx_cu{version[:2]}.so"] == f"CUDA {version}".encode()


def test_the_wheel_of_pypi_has_both_cuda_majors(assembled):
    (path,) = assembled.glob("pypi/*.whl")
    files = assemble.read_wheel(path)
    check_record(files)
    assert files["conv2d_ext/_convx_cu12.so"] == b"CUDA 12.8"
    assert files["conv2d_ext/_convx_cu13.so"] == b"CUDA 13.0"
    info = json.loads(files["conv2d_ext/_build_info.json"])
    assert info == {
        "torch": "2.10.0",
        "cuda": "12.8, 13.0",
        "archs": "8.0+PTX 9.0a",
        "revision": "abc1234",
    }
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("conv2d_ext/_convx_cu12.so").external_attr >> 16 == 0o755


def test_the_same_parts_make_the_same_bytes(tmp_path):
    first = assemble.write_wheel(make_files("13.0"), tmp_path / "first")
    second = assemble.write_wheel(make_files("13.0"), tmp_path / "second")
    assert first.read_bytes() == second.read_bytes()


def test_architectures_are_joined_in_order():
    merged = assemble.merge([make_files("12.8", "7.5 9.0a"), make_files("13.0", "9.0a 10.0")])
    assert json.loads(merged["conv2d_ext/_build_info.json"])["archs"] == "7.5 9.0a 10.0"


def test_wheels_that_do_not_fit_together():
    with pytest.raises(SystemExit, match="two wheels of one CUDA major"):
        assemble.merge([make_files("12.6"), make_files("12.8")])
    other = {**make_files("13.0"), "conv2d_ext/__init__.py": b"changed"}
    with pytest.raises(SystemExit, match=r"conv2d_ext/__init__\.py differs"):
        assemble.merge([make_files("12.8"), other])
    other = {**make_files("13.0"), "conv2d_ext/new.py": b""}
    with pytest.raises(SystemExit, match=r"conv2d_ext/new\.py is not in every wheel"):
        assemble.merge([make_files("12.8"), other])


def make_release(*assets: dict, draft: bool = False) -> dict:
    return {"draft": draft, "assets": list(assets)}


def make_asset(name: str, digest: str | None = "sha256:" + "ab" * 32) -> dict:
    url = f"https://example.org/releases/{name.replace('+', '%2B')}"
    return {"name": name, "browser_download_url": url, "digest": digest}


def test_index_links_the_wheels_of_one_cuda_version(tmp_path, monkeypatch):
    tag = "py3-none-manylinux_2_28_x86_64.whl"
    pages = [
        [make_release(*(make_asset(f"convx-1.2.3+{label}-{tag}") for label in LABELS))],
        [
            make_release(make_asset(f"convx-1.2.2+cu126-{tag}"), make_asset("convx-1.2.2.tar.gz")),
            make_release(make_asset(f"convx-9.9.9+cu126-{tag}"), draft=True),
        ],
    ]
    index.main(tmp_path, json.dumps(pages))
    page = (tmp_path / "whl/cu126/convx/index.html").read_text()
    assert page.count("<a href=") == 2
    for version in ("1.2.3", "1.2.2"):
        assert f"convx-{version}%2Bcu126-{tag}#sha256={'ab' * 32}" in page
    assert "9.9.9" not in page
    assert "cu128" not in page
    root = (tmp_path / "whl/index.html").read_text()
    assert all(f'href="{label}/"' in root for label in LABELS)


def test_index_refuses_a_wheel_without_a_digest():
    pages = [[make_release(make_asset("convx-1.2.3+cu126-py3-none-any.whl", None))]]
    with pytest.raises(SystemExit, match="no sha256 digest"):
        index.collect_links(pages, "cu126")


def test_build_torch_belongs_to_nvcc(monkeypatch):
    commands = []
    monkeypatch.setattr(install, "read_nvcc_version", lambda: "12.8")
    monkeypatch.setattr(install.subprocess, "run", lambda command, check: commands.append(command))
    install.main()
    assert commands[0][0] == sys.executable
    assert "torch==2.10.0" in commands[0]
    assert commands[0][-1] == "https://download.pytorch.org/whl/cu128"
    with pytest.raises(SystemExit, match=r"CUDA 11\.8, .* knows only 12\.6, 12\.8, 13\.0"):
        install.find_entry("11.8")


def test_nvcc_is_asked_for_its_version(tmp_path, monkeypatch):
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.6, V12.6.85\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert install.read_nvcc_version() == "12.6"
