"""convx check: right results pass, wrong ones do not."""

from __future__ import annotations

import math

import pytest
import torch

from conv2d_ext import check as check_module
from conv2d_ext._precision import PRECISIONS
from conv2d_ext._shape import Shape
from conv2d_ext.check import check
from conv2d_ext.cli import main

SHAPE = Shape.parse("n3c4h7w6 k6r3s2 stride2x1 pad1,0,2,1 dilation1x2 groups2", "a shape")
RESULTS = ["forward", "input_grad", "weight_grad", "bias_grad"]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_right_results_pass(precision: str, layout: str, device: str) -> None:
    findings = check(SHAPE, precision, layout, torch.device(device))
    assert [found.direction for found in findings] == RESULTS
    for found in findings:
        assert found.passed, found
        assert 0 <= found.rel_error < 1e-2
        assert found.engine.startswith(device) or found.direction == "bias_grad"


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("damage", [1e-2, math.nan, math.inf])
def test_one_wrong_element_fails(
    monkeypatch: pytest.MonkeyPatch, index: int, damage: float
) -> None:
    right = check_module._ours

    def wrong(*arguments):
        results = [result.clone() for result in right(*arguments)]
        results[index].view(-1)[-1] += damage
        return results

    monkeypatch.setattr(check_module, "_ours", wrong)
    findings = check(SHAPE, "ieee", "nchw", torch.device("cpu"))
    assert [found.passed for found in findings] == [i != index for i in range(4)]


def test_a_large_batch_is_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = check(SHAPE, "ieee", "nchw", torch.device("cpu"))
    monkeypatch.setattr(check_module, "_CHUNK_BYTES", 1)
    calls = []
    exact = check_module._float64

    def counted(s, x, *rest):
        calls.append(x.shape[0])
        return exact(s, x, *rest)

    monkeypatch.setattr(check_module, "_float64", counted)
    pieces = check(SHAPE, "ieee", "nchw", torch.device("cpu"))
    assert calls == [1] * 6
    for a, b in zip(whole, pieces, strict=True):
        assert a.rel_error == pytest.approx(b.rel_error, rel=1e-6)


def test_an_empty_batch_passes() -> None:
    empty = Shape.parse("n0c4h6w7 k5r3s3")
    assert all(found.passed for found in check(empty, "ieee", "nchw", torch.device("cpu")))


def test_command_passes_and_prints_a_table(capsys: pytest.CaptureFixture) -> None:
    text = "n1c4h6w7 k4r3s3"
    assert main(["check", text, "--device", "cpu", "--layouts", "nchw,nhwc"]) == 0
    out = capsys.readouterr().out
    assert out.count("PASS") == 4 * 2 * 4
    assert "32 of 32 results are right" in out
    assert main(["check", f"{text} float64", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert out.count("fp64") == out.count("PASS") == 4


def test_command_fails_on_a_wrong_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    right = check_module._ours
    monkeypatch.setattr(check_module, "_ours", lambda *a: [1.01 * r for r in right(*a)])
    assert main(["check", "n1c4h6w7 k4r3s3", "--device", "cpu", "--precisions", "ieee"]) == 1
    out = capsys.readouterr().out
    assert out.count("FAIL") == 4
    assert "0 of 4 results are right" in out


def test_an_engine_that_fails_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(*arguments):
        raise RuntimeError("something broke\nat length")

    monkeypatch.setattr(check_module, "_ours", fail)
    assert main(["check", "n1c4h6w7 k4r3s3", "--device", "cpu", "--precisions", "ieee"]) == 1
    out = capsys.readouterr().out
    assert "failed: something broke\n" in out
    assert out.count("FAIL") == 4
