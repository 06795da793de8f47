"""convx scan: every convolution of a model, once, and the time that convert() would save."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import conv2d_ext
from conv2d_ext.cli import main
from conv2d_ext.commands.models import load_model
from conv2d_ext.measuring.case import Case
from conv2d_ext.measuring.timing import Timer
from conv2d_ext.scan import find_convolutions, scan


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command puts the current folder on sys.path; other tests must not find it there."""
    monkeypatch.setattr(sys, "path", list(sys.path))


class OwnConv(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class Net(nn.Module):
    """Every way to a convolution: modules, a shared one, a subclass, the function, convx's own."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding="same", bias=False), nn.ReLU())
        self.wrapped = nn.Conv2d(width, width, 3, padding=1, padding_mode="circular")
        self.own = OwnConv(width, width, 1)
        self.ours = conv2d_ext.Conv2d(width, width, 1, padding=(0, 1, 2, 3))
        self.kernel = nn.Parameter(torch.randn(width, 1, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(self.body(self.stem(x)))
        x = self.ours(self.own(self.wrapped(x)))
        return F.conv2d(x, self.kernel, groups=x.shape[1])


def test_finds_every_convolution_in_order() -> None:
    calls = find_convolutions(Net(), torch.randn(2, 3, 10, 12))
    assert [(call.module, call.shape.text) for call in calls] == [
        ("stem", "n2c3h10w12 k8r3s3 stride2x2 pad1,1,1,1"),
        ("body.0", "n2c8h5w6 k8r3s3 pad1,1,1,1"),
        ("body.0", "n2c8h5w6 k8r3s3 pad1,1,1,1"),
        ("wrapped", "n2c8h7w8 k8r3s3"),
        ("own", "n2c8h5w6 k8r1s1"),
        ("ours", "n2c8h5w6 k8r1s1 pad0,1,2,3"),
        ("(the model)", "n2c8h6w11 k8r3s3 groups8"),
    ]
    assert [call.kept for call in calls] == [
        "",
        "",
        "",
        "",
        "OwnConv overrides forward",
        "already computes with convx",
        "no layer that convx has",
    ]
    assert [call.bias for call in calls] == [True, False, False, True, True, True, False]
    report = conv2d_ext.convert(Net(), policy="all")
    assert set(report.swapped) == {call.module for call in calls if not call.kept}


def test_dtype_and_layout_are_the_models() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3)).double().to(memory_format=torch.channels_last)
    (call,) = find_convolutions(model, torch.randn(1, 3, 6, 6, dtype=torch.float64))
    assert (call.precision, call.layout) == ("fp64", "nhwc")
    (call,) = find_convolutions(nn.Conv2d(3, 4, 3), torch.randn(3, 6, 6))
    assert (call.precision, call.layout, call.shape.N) == ("ieee", "nchw", 1)
    with torch.device("meta"):
        (call,) = find_convolutions(nn.Conv2d(3, 4, 3), torch.empty(64, 3, 512, 512))
    assert call.shape.text == "n64c3h512w512 k4r3s3"


def test_leaves_the_model_as_it_was() -> None:
    model = Net()
    hooks = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    find_convolutions(model, torch.randn(1, 3, 8, 8))
    with pytest.raises(RuntimeError, match="channels"):
        find_convolutions(model, torch.randn(1, 4, 8, 8))
    assert hooks == [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]


def fake_times(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Ours takes a millisecond; PyTorch's three, but half for kernels of one pixel."""
    timed = []

    def median_ms(call) -> float:
        case = call.__self__.case
        call()
        if call.__name__ == "ours":
            timed.append(case)
            return 1.0
        return 0.5 if case.shape.R == 1 else 3.0

    monkeypatch.setattr(Timer, "medians_ms", lambda self, calls: [median_ms(c) for c in calls])
    return timed


def test_adds_up_what_convert_would_save(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = fake_times(monkeypatch)
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 1), OwnConv(3, 3, 3))
    report = scan(model, torch.randn(1, 3, 9, 9))
    assert [layer.saved_ms for layer in report.layers] == [2.0, -0.5, 0.0]
    assert report.saved_ms == 1.5
    assert report.faster == ["0"]
    assert len(timed) == 3
    text = str(report)
    assert "kept: OwnConv overrides forward" in text
    assert "6.500 -> 5.000 ms (-23%)" in text
    assert "only the 1 of 2 modules that gain: 6.500 -> 4.500 ms (-31%)" in text
    html = report._repr_html_()
    assert html.count("<tr") == 5
    assert "n1c3h9w9 k3r3s3" in html


def test_equal_layers_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = fake_times(monkeypatch)
    model = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)))
    report = scan(model, torch.randn(1, 3, 9, 9), directions=["fwd", "dgrad", "wgrad"])
    assert len(timed) == 3
    assert report.saved_ms == 4 * 3 * 2.0
    long = ["forward", "input_grad", "weight_grad"]
    assert scan(model, torch.randn(1, 3, 9, 9), directions=long) == report
    assert "forward + input_grad + weight_grad" in str(report)


def test_a_model_without_convolutions() -> None:
    assert str(scan(nn.Linear(2, 2), torch.randn(1, 2))) == "the model computed no 2-D convolution"


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A factory in a file of the current folder, with arguments."""
    fake_times(monkeypatch)
    source = "from torch import nn\ndef make(width, depth=1):\n"
    source += "    return nn.Sequential(*[nn.Conv2d(width, width, 3) for _ in range(depth)])\n"
    (tmp_path / "scanned_model.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    command = ["scan", "scanned_model:make(6, depth=2)", "--device", "cpu", "--dtype", "float64"]
    path = tmp_path / "layers.json"
    where = ["--layout", "nhwc", "--json", str(path)]
    for _ in range(2):  # a file of its own may be replaced
        assert main([*command, "--input", "2,6,8,9", *where]) == 0
    saved = json.loads(path.read_text())
    assert [layer["text"] for layer in saved["layers"]] == ["n2c6h8w9 k6r3s3", "n2c6h6w7 k6r3s3"]
    assert saved["layers"][0]["ours_ms"] == 1.0
    assert "incomplete" not in saved
    out = capsys.readouterr().out
    assert "n2c6h8w9 k6r3s3" in out
    assert "n2c6h6w7 k6r3s3" in out
    assert "2 convolutions" in out
    assert "saves ms" in out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("torch.nn", "not of the form MODULE:FACTORY"),
        ("no_such_module_here:f", "cannot import 'no_such_module_here'"),
        ("torch.nn:NoSuchLayer", "has no 'NoSuchLayer'"),
        ("torch.nn:Conv2d(3, 4, print())", "a call with literals"),
        ("torch.nn:Conv2d(", "a call with literals"),
        ("builtins:dict", "is a dict, not a torch.nn.Module"),
    ],
)
def test_models_that_cannot_be_had(text: str, complaint: str, capsys) -> None:
    assert main(["scan", text, "--input", "1,3,8,8"]) == 2
    assert complaint in capsys.readouterr().err


def test_models_by_name_call_and_attribute() -> None:
    layer = load_model("torch.nn:Conv2d(3, 4, kernel_size=(1, 3))")
    assert isinstance(layer, nn.Conv2d)
    assert layer.kernel_size == (1, 3)
    assert isinstance(load_model("torch:nn.ReLU"), nn.ReLU)


def test_transposed_and_one_row_calls() -> None:
    """A transposed call is listed as the convolution whose input gradient it is."""
    model = nn.Sequential(
        nn.Conv1d(4, 6, 3, 2, 1), nn.Unflatten(2, (3, 5)), nn.ConvTranspose2d(6, 4, 3, 2, 1, 1)
    )
    row, transposed = find_convolutions(model, torch.randn(2, 4, 30), train=True)
    assert row.shape.text == "n2c4h1w30 k6r1s3 stride1x2 pad0,0,1,1"
    assert row.unused == ("dgrad",)
    assert transposed.shape.text == "n2c4h6w10 k6r3s3 stride2x2 pad1,1,1,1"
    directions = [case.direction for case in transposed.cases(("fwd", "dgrad", "wgrad"))]
    assert directions == ["dgrad", "fwd", "wgrad"]
    assert not transposed.kept
