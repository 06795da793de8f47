"""The commands that make would run, on machines with and without a GPU or a cross compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make(tmp_path):
    """Runs make with an nvidia-smi that reports the given compute capabilities."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")

    def run(*arguments: str, capabilities: str = "") -> str:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nprintf '{capabilities}'\n")
        program.chmod(0o755)
        # Settings of a `make test` that runs this test must not reach the make under test.
        hidden = {"CONVX_CUDA", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "TORCH_CUDA_ARCH_LIST"}
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
        done = subprocess.run(
            ["make", "--no-print-directory", *arguments, f"DEMO_VENV={tmp_path}/demo"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_demo_without_a_gpu_builds_the_cpu_half_with_a_cpu_torch(make):
    commands = make("--dry-run", "demo")
    assert "CONVX_CUDA=0" in commands
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in commands
    assert "--group build\n" in commands, "neither linters nor test tools"
    assert "dist/.built" not in commands, "the wheel of `make test` is another one"


def test_the_demo_with_a_gpu_builds_for_that_gpu(make):
    commands = make("--dry-run", "demo", capabilities="9.0\\n9.0\\n")
    assert "CONVX_CUDA=0" not in commands
    assert "whl/cpu" not in commands
    assert "building for 9.0a;" in commands


def test_make_test_builds_and_checks_everything(make):
    commands = make("--dry-run", "--always-make", "test")
    assert "CONVX_CUDA=0" not in commands
    assert "build/demo" not in commands
    for part in ("-m build --wheel", "check_matrix.py", "cross_compile.py", "mkdocs", "-n "):
        assert part in commands, part


def test_without_a_cross_compiler_one_line_says_so(make):
    ready = ROOT / ".venv/.ready-any"
    line = make(
        "cross",
        "CROSS_CXX=no-such-compiler",
        "TORCH_VERSION=any",
        f"--old-file={ready.relative_to(ROOT)}",
    )
    assert line.startswith("skipped: the core library for ")
    assert line.count("\n") == 1
