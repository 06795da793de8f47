"""Ctrl-C: partial results are saved and marked, complete files stay, and the status is 130."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import conv2d_ext
from conv2d_ext import check as check_module
from conv2d_ext._interrupts import saving, uninterrupted
from conv2d_ext.bench import measure, report
from conv2d_ext.cli import main
from conv2d_ext.commands import check as check_command
from conv2d_ext.measuring.timing import Timer

COMPLETE = Path(__file__).resolve().parents[2] / "docs/performance/cpu.json"
TINY = "n1c4h6w7 k4r3s3"
MODEL = ["torch.nn:Sequential", "--input", "1,3,8,8", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _untuned_and_interruptible(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Jobs in the background of a script ignore SIGINT, and so would the commands they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    conv2d_ext.clear_tuned()


def interrupt_after_first_step(command: list[str], folder: Path) -> tuple[int, str, str]:
    """Runs a command and sends it SIGINT once it says that one step is done."""
    process = subprocess.Popen(
        [sys.executable, "-m", "conv2d_ext", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if line.startswith("[1/"):
            process.send_signal(signal.SIGINT)
            break
    out, rest = process.communicate(timeout=60)
    return process.returncode, out, seen + rest


def test_bench_leaves_a_complete_file_alone(tmp_path: Path) -> None:
    keep = tmp_path / "keep.json"
    shutil.copy(COMPLETE, keep)
    shapes = ["--preset", "check,cpu", "--direction", "forward"]  # first small ones, then large
    command = ["bench", *shapes, "--device", "cpu", "--seconds", "0.05"]
    asked = ["--json", "keep.json", "--csv", "rows.csv"]
    status, out, err = interrupt_after_first_step([*command, *asked], tmp_path)
    assert status == 130, err
    assert "Traceback" not in err
    assert "saved in keep.incomplete.json, marked as incomplete" in err
    assert "ratio" in out
    assert keep.read_bytes() == COMPLETE.read_bytes()
    rows, about = report.read_json(tmp_path / "keep.incomplete.json")
    assert about["incomplete"] is True
    assert len(rows) == about["done"] < about["total"]
    assert sorted(os.listdir(tmp_path)) == [
        "keep.incomplete.json",
        "keep.json",
        "rows.incomplete.csv",
    ]


def test_tune_saves_what_it_has_measured(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(*(nn.Conv2d(3, 3, 1 + i % 3, padding=i) for i in range(40)))\n"
    )
    keep = tmp_path / "tuned.json"
    keep.write_text('{"format": 1, "convx": "0.0.1", "choices": []}\n')
    before = keep.read_text()
    command = ["tune", "net:net", "--input", "1,3,8,8", "--device", "cpu", "--out", "tuned.json"]
    status, _, err = interrupt_after_first_step(command, tmp_path)
    assert status == 130, err
    assert "Traceback" not in err
    assert keep.read_text() == before
    saved = json.loads((tmp_path / "tuned.incomplete.json").read_text())
    assert saved["incomplete"] is True
    assert 1 <= len(saved["choices"]) < 40
    torch.set_num_threads(1)
    assert conv2d_ext.load_tuned(tmp_path / "tuned.incomplete.json") == len(saved["choices"])


def test_check_shows_what_it_has_found(tmp_path: Path) -> None:
    everything = ["--layout", "nchw,channels_last", "--device", "cpu", "--json", "found.json"]
    status, out, err = interrupt_after_first_step(["check", *everything], tmp_path)
    assert status == 130, err
    assert "Traceback" not in err
    assert "results are right" in out
    saved = json.loads((tmp_path / "found.incomplete.json").read_text())
    assert saved["incomplete"] is True
    assert len(saved["findings"]) == 4 * saved["done"]
    assert not (tmp_path / "found.json").exists()


class Interrupt:
    """Stands in for a function, and is interrupted at its second call."""

    def __init__(self, function: Any, how: type[BaseException] = KeyboardInterrupt) -> None:
        self.function, self.how, self.calls = function, how, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise self.how
        return self.function(*args, **kwargs)


def make_net(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    source = "from torch import nn\n"
    source += "net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1))\n"
    (folder / "interrupted_net.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    return "interrupted_net:net"


def test_step_keeps_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    keep = tmp_path / "steps.jsonl"
    keep.write_text('{"model": "an earlier one"}\n')
    monkeypatch.setattr(Timer, "medians_ms", Interrupt(lambda calls: [2.0, 1.0]))
    command = ["step", make_net(tmp_path, monkeypatch), *MODEL[1:], "--json", str(keep)]
    assert main(command) == 130
    assert keep.read_text() == '{"model": "an earlier one"}\n'
    saved = json.loads((tmp_path / "steps.incomplete.jsonl").read_text())
    assert saved["incomplete"] is True
    assert (saved["mode"], saved["ours_ms"]) == ("infer", 1.0)
    captured = capsys.readouterr()
    assert "inference" in captured.out
    assert "stopped: 1 of 2 steps done" in captured.err


def test_scan_keeps_the_layers_that_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(Timer, "medians_ms", Interrupt(lambda calls: [1.0, 2.0]))
    net, path = make_net(tmp_path, monkeypatch), tmp_path / "layers.json"
    assert main(["scan", net, *MODEL[1:], "--json", str(path)]) == 130
    assert not path.exists()
    saved = json.loads((tmp_path / "layers.incomplete.json").read_text())
    assert saved["incomplete"] is True
    assert [layer["module"] for layer in saved["layers"]] == ["0"]
    captured = capsys.readouterr()
    assert "n1c3h8w8 k4r3s3" in captured.out
    assert "1 of 2 convolutions done" in captured.err


def test_demo_shows_the_rows_that_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(measure, "measure", Interrupt(measure.measure))
    assert main(["demo", "--device", "cpu", "--seconds", "0.001"]) == 130
    captured = capsys.readouterr()
    assert captured.out.count("seed") == 1
    assert "stopped: 1 of 9 cases done" in captured.err


def test_a_failure_saves_rows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure", Interrupt(measure.measure, ZeroDivisionError))
    path = tmp_path / "rows.json"
    with pytest.raises(ZeroDivisionError):
        main(["bench", TINY, "--device", "cpu", "--seconds", "0.001", "--json", str(path)])
    assert len(report.read_json(tmp_path / "rows.incomplete.json")[0]) == 1


def test_out_of_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(measure, "measure", Interrupt(measure.measure, torch.OutOfMemoryError))
    assert main(["bench", TINY, "--device", "cpu", "--seconds", "0.001"]) == 1
    assert "convx bench: error: out of memory" in capsys.readouterr().err


def test_sigterm_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def terminated(*args: Any) -> list[check_module.Finding]:
        os.kill(os.getpid(), signal.SIGTERM)
        return check_module.check(*args)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(check_command, "check", terminated)
    assert main(["check", TINY, "--device", "cpu"]) == 143
    assert capsys.readouterr().err == "convx check: terminated\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_saving_is_not_interrupted() -> None:
    saved = []

    def save() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        saved.append(True)

    def fail() -> None:
        with saving(save):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert saved == [True]
    handlers = []

    def elsewhere() -> None:
        with uninterrupted():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)  # only the main thread may change handlers
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_a_reader_that_went_away(tmp_path: Path) -> None:
    """The file is written although nobody reads the table."""
    command = [sys.executable, "-m", "conv2d_ext", "bench", TINY, "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--seconds", "0.001", "--json", "rows.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait() == 1
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err
    assert len(report.read_json(tmp_path / "rows.json")[0]) == 3
