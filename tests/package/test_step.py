"""convx step: a whole model's step, as it is and converted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import conv2d_ext
from conv2d_ext.bench.timing import Timer
from conv2d_ext.cli import main
from conv2d_ext.step import Step, measure_steps


class OwnConv(nn.Conv2d):
    """What convert() keeps: it computes in its own way."""

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
    """Or the converted model would be compared with what nobody uses."""
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
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["layout"] for line in lines] == ["nchw", "nhwc"]
    assert lines[0]["model"] == "torch.nn:Conv2d(3, 4, 3)"
    assert lines[0]["input"] == [[1, 3, 8, 8]]
    assert lines[0]["training"]["converted_ms"] > 0
    assert lines[0]["convolutions"] == {"converted": 1, "kept": 0}
    assert lines[0]["machine"]["torch"] == torch.__version__
