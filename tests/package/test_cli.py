"""The command line itself: its options, and its errors."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import conv2d_ext
from conv2d_ext import cli
from conv2d_ext._load import LoadedLibraries
from conv2d_ext.bench.shapes import suite_names
from conv2d_ext.cli import main
from conv2d_ext.commands import options
from conv2d_ext.commands.models import model_dtype, model_precision
from conv2d_ext.measuring.timing import Timer

TINY = "n1c4h6w7 k4r3s3"


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
    if not installed:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert main(["check", TINY, "--device", "cpu", "--precision", "ieee"]) == 0
    out = capsys.readouterr().out
    assert ("\x1b[32mPASS\x1b[0m" in out) == (terminal and installed)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    (line,) = [line for line in plain.splitlines() if "weight_grad" in line]
    assert line.startswith(TINY), "a table wider than the terminal keeps its lines"
    assert line.rstrip().endswith("PASS")
    assert "4 of 4 results are right" in plain


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ([], "required: command"),
        (["explain", "seed99"], "cannot read 'seed99'"),
        (["explain", "n1c6h9w9 k4r3s1 groups4"], r"input.size(1)=6"),
        (["explain", "n1c1h2w2 k1r5s5"], "kernel size can't be greater"),
        (["explain", "seed62", "--device", "abacus"], "abacus"),
        (["explain", "seed62", "--device", "meta"], "engines for cpu and cuda"),
        (["explain", "seed62", "--layout", "nchw,channels_last"], "one of nchw, channels_last"),
        (["explain", "seed62", "--direction", "sideways"], "none of forward, input_grad"),
        (["bench", "--precision", "ieee,fp8"], "'fp8' is none of ieee, tf32"),
        (["bench", "--precisions", "fp8"], "'fp8' is none of ieee, tf32"),
        (["bench", "--preset", "full,seeds"], "'seeds' is none of full, seed"),
        (["bench", "--layout", "nhcw"], "'nhcw' is none of nchw, channels_last"),
        (["bench", "--threads", "-3"], "--threads: -3 is not greater than zero"),
        (["bench", "--threads", "1000000000"], "--threads: 1000000000 is more than"),
        (["bench", "--batch", "0"], "--batch: 0 is not greater than zero"),
        (["bench", "--batch", "two"], "'two' is not a whole number"),
        (["bench", "--seconds", "-1"], "--seconds: -1 is not a finite number"),
        (["demo", "--seconds", "0"], "--seconds: 0 is not a finite number"),
        (["tune", "--seconds", "inf"], "--seconds: inf is not a finite number"),
        (["step", "--seconds", "nan"], "--seconds: nan is not a finite number"),
        (["bench", "--require", "much"], "'much' is not a number"),
        (["scan", "torch.nn:ReLU", "--input", "a,b"], "'a,b' is no list of positive numbers"),
        (["scan", "torch.nn:ReLU", "--input", "1,-3"], "'1,-3' is no list of positive numbers"),
        (["step", "torch.nn:ReLU", "--in", "1,3"], "unrecognized arguments|required: --input"),
    ],
)
def test_bad_arguments_are_named_in_one_line(
    command: list[str], complaint: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(command)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(" ".join(["convx", *command[:1]]) + ": error: ")
    assert any(part in line for part in complaint.split("|"))


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object) -> None:
        raise AssertionError("it must be refused before anything is measured")

    monkeypatch.setattr(Timer, "_alternate", measure)
    monkeypatch.setattr(sys, "path", list(sys.path))


MODEL = ["torch.nn:Conv2d(3, 4, 3)", "--input", "1,3,8,8", "--device", "cpu"]
TWO_MORE = ["--input", "1,3,8,8"] * 2  # a layer takes an input and a residual
BENCH = ["bench", TINY, "--device", "cpu"]


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ([*BENCH, "--json", "/proc/no.json"], "cannot write /proc/no.json: "),
        ([*BENCH, "--json", "a_file/below.json"], "cannot write a_file/below.json: Not a dir"),
        ([*BENCH, "--json", "a_folder"], "cannot write a_folder: Is a directory"),
        ([*BENCH, "--json", "a_file"], "a_file exists and is not a file of `convx bench --json`"),
        ([*BENCH, "--csv", "/proc/no.csv"], "cannot write /proc/no.csv: "),
        ([*BENCH, "--json", "same", "--csv", "./same"], "same is given for two outputs"),
        ([*BENCH, "--plot", "picture.gif"], "must end in .png, .svg, .pdf"),
        ([*BENCH, "--plot", "/proc/no.svg"], "cannot write /proc/no.svg: "),
        ([*BENCH, "--compare", "missing.json"], "cannot read missing.json: No such file"),
        ([*BENCH, "--compare", "a_file"], "a_file is not a file that `convx bench --json` wrote"),
        ([*BENCH, "--engines", "nope"], "unknown engine 'nope'; cpu has auto, cpu_gemm"),
        ([*BENCH, "--engines", "auto,cpu_gemm:no"], "'cpu_gemm:no' can run none of the cases"),
        ([*BENCH, "--graphs"], "CUDA graphs are timed on a GPU"),
        ([*BENCH, "--batch", "1000000000000000000"], "overflowed"),
        (["bench", "n0c4h6w7 k4r3s3", "--device", "cpu"], "has no images"),
        (["explain", TINY, "--device", "cpu", "--algorithm", "magic"], "unknown engine 'magic'"),
        (["explain", f"{TINY} float16", "--precision", "bf16"], "but --precision is bf16"),
        (["check", TINY, "--device", "cpu", "--json", "/proc/no.json"], "cannot write /proc"),
        (["check", TINY, "--device", "cpu", "--json", "a_file"], "is not a file of `convx check"),
        (["info", "--json", "/proc/no.json"], "cannot write /proc/no.json: "),
        (["plot", "missing.json", "x.svg"], "cannot read missing.json: No such file"),
        (["plot", "a_file", "x.svg"], "a_file is not a file that `convx bench --json` wrote"),
        (["plot", "a_file", "/proc/no.svg"], "cannot write /proc/no.svg: "),
        (["plot", "p.svg", "./p.svg"], "the picture would be written over p.svg"),
        (["scan", *MODEL, "--json", "/proc/no.json"], "cannot write /proc/no.json: "),
        (["scan", *MODEL, "--json", "a_file"], "is not a file of `convx scan --json`"),
        (["step", *MODEL, "--json", "/proc/no.jsonl"], "cannot write /proc/no.jsonl: "),
        (["step", *MODEL, "--json", "a_file"], "is not a file of `convx step --json`"),
        (["tune", *MODEL, "--out", "/proc/no.json"], "cannot write /proc/no.json: "),
        (["tune", *MODEL, "--out", "a_file"], "cannot add to path='a_file'"),
        (["tune", *MODEL, "--out", "x", *TWO_MORE], "fails on these inputs: TypeError"),
        (["scan", "torch.nn:Conv2d(3)", *MODEL[1:]], "cannot make 'torch.nn:Conv2d(3)': TypeErr"),
        (["scan", "math:pi", *MODEL[1:]], "'math:pi' is a float, not a torch.nn.Module"),
        (["scan", *MODEL, "--input", "1,3,8,8"], "fails on these inputs: TypeError"),
        (["step", "torch.nn:ReLU", *MODEL[1:]], "no output of the model has a gradient"),
        (["step", *MODEL, "--dtype", "float16", "--precision", "fp16"], "leave out --dtype"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_come_before_the_work(
    command: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_folder").mkdir()
    for name in ("a_file", "p.svg"):
        (tmp_path / name).write_text("a user's own text\n")
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"convx {command[0]}: error: ")
    assert complaint in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_file", "a_folder", "p.svg"]
    assert (tmp_path / "a_file").read_text() == "a user's own text\n"


def parse(*words: str) -> argparse.Namespace:
    return cli._parser().parse_args(words)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("bench --direction forward,weight_grad", "bench --directions fwd,wgrad"),
        ("bench --direction all", "bench --directions fwd,dgrad,wgrad"),
        ("bench --layout nchw,channels_last", "bench --layouts nchw,nhwc"),
        ("bench --precision ieee,tf32", "bench --precisions ieee,tf32"),
        ("bench --preset seed", "bench --suite seed"),
        ("check --layout channels_last --precision bf16", "check --layouts nhwc --precisions bf16"),
        ("explain seed62 --layout channels_last", "explain seed62 --channels-last"),
        ("plot a.json b.svg --precision ieee", "plot a.json b.svg --precisions ieee"),
        ("scan m:f --input 1 --direction all", "scan m:f --input 1 --directions fwd,dgrad,wgrad"),
        ("step m:f --input 1 --layout channels_last", "step m:f --input 1 --layout nhwc"),
    ],
)
def test_earlier_spellings_mean_the_same(new: str, old: str) -> None:
    assert parse(*new.split()) == parse(*old.split())


def test_the_dtype_of_a_model() -> None:
    scan = ["scan", "m:f", "--input", "1"]
    for words, dtype in {
        ("--dtype", "bfloat16"): torch.bfloat16,
        ("--precision", "bf16"): torch.bfloat16,
        ("--precision", "tf32"): torch.float32,
        ("--precision", "fp64"): torch.float64,
        (): torch.float32,
    }.items():
        assert model_dtype(parse(*scan, *words)) is dtype


@pytest.mark.parametrize(("name", "allowed"), [("ieee", False), ("tf32", True), (None, None)])
def test_the_precision_of_a_model_is_pytorchs_setting(
    name: str | None, allowed: bool | None
) -> None:
    before = torch.backends.cudnn.allow_tf32
    with model_precision(argparse.Namespace(precision=name)):
        assert torch.backends.cudnn.allow_tf32 == (before if allowed is None else allowed)
        assert torch.backends.cudnn.enabled
    assert torch.backends.cudnn.allow_tf32 == before


VALUES = {
    "--direction": ["forward", "input_grad", "weight_grad", "all"],
    "--layout": ["nchw", "channels_last"],
    "--precision": ["ieee", "tf32", "bf16", "fp16", "fp64"],
    "--device": ["cpu", "cuda", "cuda:N"],
    "--preset": suite_names(),
    "--vs": ["cudnn", "cublas", "inductor"],
    "--engines": ["auto", "cpu_gemm", "cpu_direct"],
    "--algorithm": ["auto", "cpu_gemm", "cpu_direct"],
    "--plot": [".png", ".svg", ".pdf"],
}


@pytest.mark.parametrize("command", [c.__name__.rpartition(".")[2] for c in cli._COMMANDS])
def test_help_says_what_it_is_for_and_which_values_there_are(command: str) -> None:
    (subparsers,) = (a for a in cli._parser()._actions if isinstance(a.choices, dict))
    parser = subparsers.choices[command]
    assert parser.description
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        assert action.help, action.option_strings
        for value in VALUES.get((action.option_strings or [""])[0], []):
            assert value in action.help, action.option_strings
        plural = {"--directions", "--layouts", "--precisions", "--dtype", "--channels-last"}
        assert not plural & set(action.option_strings)
    assert "%" not in parser.format_help()


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


def test_a_gpu_that_convx_cannot_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """torch has a GPU, but there is no CUDA half, or not so many GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    loaded = LoadedLibraries(Path("core.so"), None, "there is none\n  for a reason")
    monkeypatch.setattr(options, "loaded_libraries", lambda: loaded)
    assert parse("check").device == torch.device("cpu")
    for name, complaint in {"cuda": "there is none for a reason", "cuda:2": "2 CUDA dev"}.items():
        with pytest.raises(SystemExit, match="2"):
            main(["check", "--device", name])
        assert complaint in capsys.readouterr().err


def test_info_goes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conv2d_ext.commands.info.collect", lambda: {"convx": "1"})
    path = tmp_path / "info.json"
    assert main(["info", "--json", str(path)]) == 0
    assert json.loads(path.read_text()) == {"convx": "1"}


def test_demo_shows_the_three_workloads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(Timer, "medians_ms", lambda self, calls: [1.0] * len(calls))
    assert main(["demo", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    for name in ("seed62", "seed63", "seed80", "engine", "error", "ratio"):
        assert name in out
