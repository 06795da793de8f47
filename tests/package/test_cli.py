"""The command line, and the benchmark behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from conv2d_ext.bench import measure, report
from conv2d_ext.bench.reference import sampled_error
from conv2d_ext.bench.shapes import Shape, find_shape, load_suite, suite_names
from conv2d_ext.bench.timing import Timer
from conv2d_ext.cli import main

TINY = "n1c4h6w7 k4r3s3 pad1,0,2,1"


def test_shape_text_round_trip() -> None:
    texts = ["n8c32h512w512 k64r5s9", TINY]
    texts += ["n2c6h9w9 k4r3s1 stride2x1 pad1,1,0,0 dilation1x3 groups2"]
    for text in texts:
        assert Shape.parse(text).text == text
    for suite in suite_names():
        for shape in load_suite(suite):
            assert Shape.parse(shape.text, shape.name) == shape
            assert shape.P >= 1
            assert shape.Q >= 1


@pytest.mark.parametrize("text", ["n1c2h3w4", "n1c2h3w4 k1r1s1 stride2", "hello"])
def test_unreadable_shapes(text: str) -> None:
    with pytest.raises(ValueError, match="shape"):
        Shape.parse(text)


def test_shape_arithmetic() -> None:
    shape = find_shape("seed80")
    assert (shape.P, shape.Q) == (508, 496)
    assert round(shape.flops / 1e9, 1) == 371.5
    assert round(shape.elements * 4 / 1e6) == 785


@pytest.mark.parametrize("direction", measure.DIRECTIONS)
@pytest.mark.parametrize("layout", measure.LAYOUTS)
def test_the_check_notices_a_wrong_element(direction: str, layout: str) -> None:
    shape = Shape.parse("n2c4h5w6 k6r3s2 stride2x1 pad1,0,2,1 dilation1x2 groups2")
    operands = measure.Operands(measure.Case(shape, direction, "ieee", layout), torch.device("cpu"))
    tensors = operands.x, operands.w, operands.g
    for result in (operands.ours(), operands.theirs()):
        assert sampled_error(direction, shape, result, *tensors) < 1e-6
        assert sampled_error(direction, shape, result + 1, *tensors) > 1e-2


def test_bench_writes_rows_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "rows.json"
    command = ["bench", TINY, "--device", "cpu", "--seconds", "0.001", "--json", str(out)]
    assert main(command) == 0
    document = json.loads(out.read_text())
    assert {"device", "torch", "revision"} <= set(document["machine"])
    assert [row["direction"] for row in document["rows"]] == ["fwd", "dgrad", "wgrad"]
    keys = "shape direction precision layout engine ours_ms cudnn_ms ratio floor_ms rel_error"
    for row in document["rows"]:
        assert set(keys.split()) <= set(row)
        assert row["ratio"] == pytest.approx(row["cudnn_ms"] / row["ours_ms"])
        assert row["rel_error"] < 1e-5
    assert main([*command, "--compare", str(out)]) == 0
    assert "before ms" in capsys.readouterr().out
    assert main([*command, "--require", "1e9"]) == 1
    assert main([*command, "--require-mean", "1e9"]) == 1
    assert "below --require" in capsys.readouterr().out


def test_a_wrong_result_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.Operands, "ours", lambda self: self.theirs() * 1.01)
    assert main(["bench", TINY, "--device", "cpu", "--seconds", "0.001"]) == 1


def test_explain_prints_the_choice(capsys: pytest.CaptureFixture) -> None:
    assert main(["explain", "seed62", "--device", "cpu"]) == 0
    assert "runs it" in capsys.readouterr().out


def test_demo_shows_the_three_workloads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(Timer, "times_ms", lambda self, call: [1.0])
    assert main(["demo", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    for name in ("seed62", "seed63", "seed80", "engine", "error", "ratio"):
        assert name in out


def test_geometric_mean() -> None:
    assert report.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
