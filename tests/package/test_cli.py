"""The command line itself: what it takes, and how it says no."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import conv2d_ext
from conv2d_ext.bench.timing import Timer
from conv2d_ext.cli import main


def test_version(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"convx {conv2d_ext.__version__}\n"


@pytest.mark.parametrize("installed", [True, False], ids=["rich", "no rich"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
def test_reports_are_coloured_where_that_is_possible(
    terminal: bool,
    installed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    class Console:
        def __init__(self, *, soft_wrap: bool) -> None:
            assert soft_wrap

        def print(self, text: str, **options: Any) -> None:
            assert not any(options.values())
            print(f"coloured: {text}")

    module = ModuleType("rich.console")
    module.Console = Console  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rich", ModuleType("rich"))
    monkeypatch.setitem(sys.modules, "rich.console", module if installed else None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert main(["explain", "n1c4h9w9 k4r3s3", "--device", "cpu", "--no-floor"]) == 0
    assert capsys.readouterr().out.startswith("coloured: ") == (terminal and installed)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ([], "required: command"),
        (["explain", "seed99"], "cannot read 'seed99'"),
        (["explain", "n1c6h9w9 k4r3s1 groups4"], r"input.size(1)=6"),
        (["explain", "n1c1h2w2 k1r5s5"], "kernel size can't be greater"),
        (["explain", "seed62", "--device", "abacus"], "abacus"),
        (["explain", "seed62", "--device", "meta"], "engines for cpu and cuda"),
        (["bench", "--precisions", "ieee,fp8"], "'fp8' is none of ieee, tf32"),
        (["scan", "torch.nn:ReLU", "--input", "a,b"], "'a,b' is no list of numbers"),
    ],
)
def test_bad_arguments_are_named(
    command: list[str], complaint: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(command)
    assert complaint in capsys.readouterr().err


def test_cuda_without_a_gpu_is_an_argument_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        main(["check", "--device", "cuda"])
    assert "cannot use a CUDA device here" in capsys.readouterr().err


def test_explain_prints_the_choice(capsys: pytest.CaptureFixture) -> None:
    assert main(["explain", "seed62", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "runs it" in out
    assert "floor" in out


def test_explain_takes_what_a_message_says(capsys: pytest.CaptureFixture) -> None:
    """dtype from the text; all directions; nothing measured."""
    problem = conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), dtype=torch.float64).problem
    assert main(["explain", problem, "--device", "cpu", "--direction", "all", "--no-floor"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"{problem}, ") == 3
    assert "floor" not in out
    for direction in ("forward", "input_grad", "weight_grad"):
        assert f"{problem}, {direction}, ieee" in out


def test_explain_fails_for_an_engine_that_does_not_exist(capsys: pytest.CaptureFixture) -> None:
    command = ["explain", "seed62", "--device", "cpu", "--no-floor", "--algorithm", "magic"]
    assert main(command) == 1
    assert "unknown algorithm='magic'" in capsys.readouterr().out


def test_demo_shows_the_three_workloads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(Timer, "medians_ms", lambda self, calls: [1.0] * len(calls))
    assert main(["demo", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    for name in ("seed62", "seed63", "seed80", "engine", "error", "ratio"):
        assert name in out
