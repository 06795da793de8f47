"""The scripts that check a release, and that turn built wheels into one."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
LABELS = {"cu126": "12.6", "cu128": "12.8", "cu130": "13.0"}
PLATFORMS = ("x86_64", "aarch64")

assemble = load_script("assemble_wheels")
index = load_script("make_index")
install = load_script("install_build_torch")
check_matrix = load_script("check_matrix")
check_release = load_script("check_release")
read_matrix = load_script("read_matrix")


def make_files(
    version: str, archs: str = "8.0+PTX 9.0a", platform: str = "x86_64"
) -> dict[str, bytes]:
    info = {"torch": "2.10.0", "cuda": version, "archs": archs, "revision": "abc1234"}
    metadata = (
        "Metadata-Version: 2.4\nName: conv2d-ext\nVersion: 1.2.3\nRequires-Dist: torch>=2.10\n"
    )
    tag = f"py3-none-manylinux_2_28_{platform}"
    return {
        "conv2d_ext/__init__.py": b"",
        "conv2d_ext/_build_info.json": json.dumps(info).encode(),
        "conv2d_ext/_convx_core.so": f"core built beside CUDA {version}".encode(),
        f"conv2d_ext/_convx_cu{version[:2]}.so": f"CUDA {version} {platform}".encode(),
        "conv2d_ext-1.2.3.dist-info/METADATA": metadata.encode(),
        "conv2d_ext-1.2.3.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n".encode(),
        "conv2d_ext-1.2.3.dist-info/RECORD": b"of the wheel before",
    }


@pytest.fixture
def assembled(tmp_path) -> Path:
    for platform in PLATFORMS:
        for label, version in LABELS.items():
            files = make_files(version, platform=platform)
            assemble.write_wheel(files, tmp_path / "built" / f"{platform}-{label}")
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
    names = {path.relative_to(assembled).as_posix() for path in assembled.rglob("*.whl")}
    expected = set()
    for platform in PLATFORMS:
        tag = f"py3-none-manylinux_2_28_{platform}"
        expected |= {f"index/conv2d_ext-1.2.3+{label}-{tag}.whl" for label in LABELS}
        expected.add(f"pypi/conv2d_ext-1.2.3-{tag}.whl")
    assert names == expected


@pytest.mark.parametrize("platform", PLATFORMS)
def test_wheels_of_the_index_have_a_local_version(assembled, platform):
    for label, version in LABELS.items():
        (path,) = assembled.glob(f"index/*+{label}-*{platform}.whl")
        files = assemble.read_wheel(path)
        check_record(files)
        metadata = files[f"conv2d_ext-1.2.3+{label}.dist-info/METADATA"].decode()
        assert f"Version: 1.2.3+{label}\n" in metadata
        assert "Requires-Dist: torch>=2.10\n" in metadata
        library = files[f"conv2d_ext/_convx_cu{version[:2]}.so"]
        assert library == f"CUDA {version} {platform}".encode()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_wheel_of_pypi_has_both_cuda_majors(assembled, platform):
    (path,) = assembled.glob(f"pypi/*{platform}.whl")
    files = assemble.read_wheel(path)
    check_record(files)
    assert files["conv2d_ext/_convx_cu12.so"] == f"CUDA 12.8 {platform}".encode()
    assert files["conv2d_ext/_convx_cu13.so"] == f"CUDA 13.0 {platform}".encode()
    info = json.loads(files["conv2d_ext/_build_info.json"])
    assert info == {
        "torch": "2.10.0",
        "cuda": "12.8, 13.0",
        "archs": "8.0+PTX 9.0a",
        "revision": "abc1234",
    }
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("conv2d_ext/_convx_cu12.so").external_attr >> 16 == 0o755


def test_a_wheel_in_the_folder_of_another_machine_type(tmp_path):
    for platform in PLATFORMS:
        for label, version in LABELS.items():
            folder = tmp_path / "built" / f"{platform}-{label}"
            assemble.write_wheel(make_files(version, platform="x86_64"), folder)
    with pytest.raises(SystemExit, match="is not a wheel for aarch64"):
        assemble.main(tmp_path / "built", tmp_path / "dist")


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


def test_index_links_the_wheels_of_one_cuda_version(tmp_path):
    tags = [f"py3-none-manylinux_2_28_{platform}.whl" for platform in PLATFORMS]
    newest = [make_asset(f"conv2d_ext-1.2.3+{label}-{tag}") for label in LABELS for tag in tags]
    older = [make_asset(f"conv2d_ext-1.2.2+cu126-{tags[0]}"), make_asset("conv2d_ext-1.2.2.tar.gz")]
    draft = make_release(make_asset(f"conv2d_ext-9.9.9+cu126-{tags[0]}"), draft=True)
    pages = [[make_release(*newest)], [make_release(*older), draft]]
    index.main(tmp_path, json.dumps(pages))
    page = (tmp_path / "whl/cu126/conv2d-ext/index.html").read_text()
    assert page.count("<a href=") == 3
    for version, tag in (("1.2.3", tags[0]), ("1.2.3", tags[1]), ("1.2.2", tags[0])):
        assert f"conv2d_ext-{version}%2Bcu126-{tag}#sha256={'ab' * 32}" in page
    assert "9.9.9" not in page
    assert "cu128" not in page
    root = (tmp_path / "whl/index.html").read_text()
    assert all(f'href="{label}/"' in root for label in LABELS)
    assert 'href="conv2d-ext/"' in (tmp_path / "whl/cu126/index.html").read_text()


def test_index_refuses_a_wheel_without_a_digest():
    pages = [[make_release(make_asset("conv2d_ext-1.2.3+cu126-py3-none-any.whl", None))]]
    with pytest.raises(SystemExit, match="no sha256 digest"):
        index.collect_links(pages, "cu126")


def test_build_torch_belongs_to_nvcc(monkeypatch):
    commands = []
    monkeypatch.setattr(install, "read_nvcc_version", lambda: "12.8")
    monkeypatch.setattr(install.subprocess, "run", lambda command, check: commands.append(command))
    install.main()
    tools, torch = commands
    assert tools[0] == torch[0] == sys.executable
    assert "--require-hashes" in tools
    assert Path(tools[-1]).name == "release.txt"
    assert "torch==2.10.0" in torch
    assert torch[-1] == "https://download.pytorch.org/whl/cu128"
    with pytest.raises(SystemExit, match=r"CUDA 11\.8, .* knows only 12\.6, 12\.8, 13\.0"):
        install.find_entry("11.8")


def test_nvcc_is_asked_for_its_version(tmp_path, monkeypatch):
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.6, V12.6.85\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert install.read_nvcc_version() == "12.6"


PYPI = "https://pypi.org/simple"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SMALL_MATRIX = {
    "platforms": {"x86_64": {}},
    "cuda": [],
    "cpu_tests": [
        {"platform": "x86_64", "python": "3.10", "torch": "2.10.0", "other": "2.15.0"},
        {"platform": "x86_64", "python": "3.14t", "torch": "2.15.0", "other": "2.10.0"},
    ],
    "compat": [],
}


def run_check_matrix(tmp_path, monkeypatch, registries: dict[str, dict[str, set[str]]]):
    """Runs the check with registries that hold, for each Python, the given versions of torch."""
    path = tmp_path / "build-matrix.json"
    path.write_text(json.dumps(SMALL_MATRIX))
    monkeypatch.setattr(check_matrix, "MATRIX", path)
    monkeypatch.setattr(check_matrix, "check_pip", lambda: None)
    monkeypatch.setattr(
        check_matrix,
        "ask_registry",
        lambda registry, platform, python, retries: registries.get(registry, {}).get(python, set()),
    )
    return check_matrix.main(strict=False), check_matrix.main(strict=True)


ALL_TORCH = {
    PYPI: {"3.10": {"2.10.0", "2.15.0"}, "3.14t": {"2.10.0", "2.15.0"}},
    CPU_INDEX: {"3.10": {"2.10.0+cpu", "2.15.0+cpu"}, "3.14t": {"2.10.0+cpu", "2.15.0+cpu"}},
}


def test_every_torch_of_the_matrix_exists(tmp_path, monkeypatch, capsys):
    assert run_check_matrix(tmp_path, monkeypatch, ALL_TORCH) == (0, 0)
    assert "8 of 8 wheels" in capsys.readouterr().out


def test_a_torch_that_one_registry_does_not_have(tmp_path, monkeypatch, capsys):
    registries = {**ALL_TORCH, PYPI: {**ALL_TORCH[PYPI], "3.10": {"2.10.0"}}}
    assert run_check_matrix(tmp_path, monkeypatch, registries) == (1, 1)
    message = f"does not exist: torch 2.15.0 for Python 3.10 on x86_64 at {PYPI}"
    assert capsys.readouterr().out.count(message) == 2


def test_a_registry_that_cannot_be_reached_is_skipped(tmp_path, monkeypatch, capsys):
    assert run_check_matrix(tmp_path, monkeypatch, {PYPI: ALL_TORCH[PYPI]}) == (0, 1)
    assert f"skipped: cannot reach {CPU_INDEX}\n4 of 4 wheels" in capsys.readouterr().out


def test_the_registry_is_asked_with_pip_alone(monkeypatch):
    """Local wheels and other indexes of this machine must not answer for the registry."""
    asked = {}

    def run(command, env, capture_output, text):
        asked.update(command=command, env=env)
        return subprocess.CompletedProcess(command, 0, json.dumps({"versions": ["2.15.0"]}), "")

    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://example.org")
    monkeypatch.setattr(check_matrix.subprocess, "run", run)
    assert check_matrix.ask_registry(PYPI, "aarch64", "3.14t", 0) == {"2.15.0"}
    assert not {"PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"} & set(asked["env"])
    words = " ".join(asked["command"])
    assert f"pip index versions torch --json --index-url {PYPI} " in words
    assert "--python-version 3.14 --abi cp314t --platform manylinux_2_28_aarch64" in words


def test_every_row_of_the_matrix_gets_a_runner():
    lists = read_matrix.read_matrix()
    assert {row["image"] for row in lists["builds"]} >= {
        "pytorch/manylinux2_28-builder:cuda12.6",
        "pytorch/manylinuxaarch64-builder:cuda13.0",
    }
    assert len(lists["builds"]) == len(PLATFORMS) * len(LABELS)
    runners = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
    for rows in lists.values():
        assert all(row["runner"] == runners[row["platform"]] for row in rows)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A clone of a repository whose main has version 1.2.3, checked out at main."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    (origin / "conv2d_ext").mkdir(parents=True)
    (origin / "conv2d_ext/_version.py").write_text('__version__ = "1.2.3"\n')
    (origin / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2026-11-18\n")
    git(origin, "init", "--quiet", "--initial-branch=main")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "--message=Version 1.2.3")
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    return clone


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


SOURCE = "https://github.com/someone/convx"


def test_a_tag_that_can_be_released(checkout):
    assert check_release.find_problems(checkout, "v1.2.3", "someone/convx", SOURCE) == []


def test_a_tag_that_is_not_on_main(checkout):
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=Only on a branch")
    problems = check_release.find_problems(checkout, "v1.2.3", "someone/convx", SOURCE)
    assert problems == ["the tagged commit is not on main"]


def test_a_tag_of_another_version(checkout):
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n")
    problems = check_release.find_problems(checkout, "v1.2.4", "someone/convx", SOURCE)
    assert problems == [
        "the tag is v1.2.4, and conv2d_ext/_version.py has version 1.2.3",
        "CHANGELOG.md has no section [1.2.3]",
    ]


def test_a_release_from_a_repository_that_the_metadata_does_not_name(checkout):
    problems = check_release.find_problems(checkout, "v1.2.3", "other/convx", SOURCE)
    assert len(problems) == 1
    assert "[project.urls] in pyproject.toml" in problems[0]
    assert "https://github.com/other/convx" in problems[0]
