"""convx step: a whole model's step, as it is and converted."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import conv2d_ext
from conv2d_ext.cli import main
from conv2d_ext.measuring.timing import Timer
from conv2d_ext.step import Deadline, Step, measure_steps


class OwnConv(nn.Conv2d):
    """A layer that convert() keeps, because it overrides how it computes."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Net(nn.Module):
    """Outputs in a dict, as segmentation models have, and one that nothing can be learnt from."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.drop = nn.Dropout()
        self.own = OwnConv(4, 4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.own(self.drop(self.conv(x)))
        return {"out": y, "best": y.argmax(1)}


def test_pytorchs_convolutions_are_autotuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without autotuning, the converted model would be compared with slower kernels."""
    seen = []

    def forward(self: nn.Conv2d, x: Tensor) -> Tensor:
        seen.append((torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark))
        return whole(self, x)

    whole = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", forward)
    measure_steps(Net(), torch.randn(2, 3, 8, 9), seconds=0)
    assert set(seen) == {(True, True)}


def test_both_models_take_both_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def medians_ms(self: Timer, calls) -> list[float]:
        times = []
        for call in calls:
            call()
            times.append(float(len(seen)))
        return times

    def forward(self: nn.Conv2d, x: Tensor) -> Tensor:
        seen.append((False, self.training, torch.is_grad_enabled()))
        return whole(self, x)

    whole = nn.Conv2d.forward
    ours = conv2d_ext.Conv2d.forward
    monkeypatch.setattr(Timer, "medians_ms", medians_ms)
    monkeypatch.setattr(nn.Conv2d, "forward", forward)

    def converted_forward(self, x: Tensor) -> Tensor:
        seen.append((True, self.training, torch.is_grad_enabled()))
        return ours(self, x)

    monkeypatch.setattr(conv2d_ext.Conv2d, "forward", converted_forward)
    report = measure_steps(Net(), torch.randn(2, 3, 8, 9))
    assert [step.name for step in report.steps] == ["inference", "training"]
    # conv and own, of the original and of the copy, in which conv alone is converted.
    modes = [(False, False), (True, True)]
    assert seen == [
        (is_ours, training, grad)
        for training, grad in modes
        for is_ours in (False, False, True, False)
    ]


def test_the_model_is_left_alone() -> None:
    model = Net().eval()
    before = [parameter.clone() for parameter in model.parameters()]
    report = measure_steps(model, torch.randn(2, 3, 8, 9), seconds=0.001)
    assert type(model.conv) is nn.Conv2d
    assert not model.training
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is None
    text = str(report)
    assert "1 of 2 convolutions converted" in text
    assert "training" in text
    assert "<table>" in report._repr_html_()


def test_ratio() -> None:
    assert Step("inference", 3.0, 2.0).ratio == 1.5


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "steps" / "models.jsonl"
    arguments = ["--input", "1,3,8,8", "--seconds", "0.001", "--device", "cpu"]
    for layout in ("nchw", "nhwc"):
        where = ["--layout", layout, "--json", str(file)]
        assert main(["step", "torch.nn:Conv2d(3, 4, 3)", *arguments, *where]) == 0
    out = capsys.readouterr().out
    assert "converted ms" in out
    assert "1 of 1 convolutions converted" in out
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["layout"], row["mode"]) for row in rows] == [
        (layout, mode) for layout in ("nchw", "nhwc") for mode in ("infer", "train")
    ]
    for row in rows:
        assert row["model"] == "torch.nn:Conv2d(3, 4, 3)"
        assert row["input"] == [[1, 3, 8, 8]]
        assert row["ratio"] == row["torch_ms"] / row["ours_ms"]
        assert (row["precision"], row["policy"], row["compiled"]) == ("torch", "all", False)
        assert (row["ours_peak_bytes"], row["torch_peak_bytes"]) == (None, None)
        assert row["convolutions"] == {"converted": 1, "kept": 0}
        assert row["machine"]["torch"] == torch.__version__


def fake_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def medians_ms(self: Timer, calls) -> list[float]:
        for call in calls:
            call()
        return [2.0, 1.0]

    monkeypatch.setattr(Timer, "medians_ms", medians_ms)
    monkeypatch.setattr(Timer, "median_ms", lambda self, call: 1.0)


def test_several_of_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    """Two models, precisions, layouts and executions; the compiler is left out."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    backends = []

    def compile_model(model: nn.Module, backend: object = "inductor") -> nn.Module:
        backends.append(backend)
        return model

    monkeypatch.setattr(torch, "compile", compile_model)
    fake_times(monkeypatch)
    file = tmp_path / "steps.jsonl"
    models = "torch.nn:Conv2d(3, 4, 3)", "torch.nn:Conv2d(3, 6, 1)"
    words = "--precision ieee,bf16 --autocast --layout nchw,channels_last --mode training"
    words += " --execution eager,compiled --input 1,3,8,8 --device cpu"
    assert main(["step", *models, *words.split(), "--json", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    seen = [
        (row["model"], row["compiled"], row["precision"], row["layout"], row["mode"])
        for row in rows
    ]
    assert seen == [
        (model, compiled, precision, layout, "train")
        for model in models
        for compiled in (False, True)
        for precision in ("ieee", "bf16")
        for layout in ("nchw", "nhwc")
    ]
    assert {row["dtype"] for row in rows} == {"float32"}
    assert [row["autocast"] for row in rows] == [row["precision"] == "bf16" for row in rows]
    assert len(backends) == 2 * sum(row["compiled"] for row in rows)
    assert "torch.nn:Conv2d(3, 6, 1) bf16 autocast channels_last" in capsys.readouterr().out


def test_a_time_limit_leaves_out_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    fake_times(monkeypatch)
    report = measure_steps(Net(), torch.randn(2, 3, 8, 9), limit=1e-9)
    assert report.steps == ()
    assert "no time was left for 2 steps" in str(report)
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    deadline = Deadline(45)  # until 45, from 0 on
    assert deadline.run("eager", lambda: None)  # from 10 to 20
    assert deadline.run("eager", lambda: None)  # from 30 to 40
    assert not deadline.run("eager", lambda: None)  # at 50
    arguments = ["step", "torch.nn:Conv2d(3, 4, 3)", "--input", "1,3,8,8", "--device", "cpu"]
    assert main([*arguments, "--layout", "nchw,channels_last", "--limit", "1"]) == 0
    assert "channels_last, eager: no time was left" in capsys.readouterr().out


def test_only_faster_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_times(monkeypatch)
    report = measure_steps(Net(), torch.randn(2, 3, 8, 9), policy="faster")
    assert report.converted is not None
    assert report.converted.swapped == []  # by these times, the whole model is not faster
    assert len(report.steps) == 2


def test_autocast_needs_a_precision(capsys: pytest.CaptureFixture) -> None:
    assert main(["step", "torch.nn:Conv2d(3, 4, 3)", "--input", "1,3,8,8", "--autocast"]) == 2
    assert "--autocast is for --precision bf16 or fp16" in capsys.readouterr().err


@pytest.mark.slow
def test_compiled_steps() -> None:
    x = torch.randn(1, 3, 8, 8)
    report = measure_steps(nn.Conv2d(3, 4, 3), x, seconds=0.001, compiled=(False, True))
    titles = [step.title for step in report.steps]
    assert titles == ["inference", "training", "inference, compiled", "training, compiled"]
