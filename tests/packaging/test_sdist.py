"""The source distribution has all that a build from it needs."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> set[str]:
    if importlib.util.find_spec("build.__main__") is None:
        pytest.skip("the package `build` is not installed")
    copy = tmp_path_factory.mktemp("sdist") / "convx"
    leave_out = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__"
    )
    shutil.copytree(ROOT, copy, ignore=leave_out)
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--no-isolation"],
        cwd=copy,
        check=True,
        capture_output=True,
    )
    (archive,) = copy.glob("dist/conv2d_ext-*.tar.gz")
    with tarfile.open(archive) as opened:
        return {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}


def test_sources_are_complete(names):
    needed = {"setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile", "mkdocs.yml"}
    needed |= {".github/build-matrix.json", ".ci/run"}
    for folder in ("csrc", "conv2d_ext", "tests", "docs", ".github"):
        for path in (ROOT / folder).rglob("*"):
            made = path.suffix in (".so", ".pyc", ".o") or path.name == "_build_info.json"
            if path.is_file() and not made:
                needed.add(path.relative_to(ROOT).as_posix())
    assert not needed - names


def test_nothing_compiled_is_in_it(names):
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc"))]
    assert "conv2d_ext/_build_info.json" not in names
