"""Pictures of a benchmark."""

from __future__ import annotations

import builtins
import importlib
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conv2d_ext.bench import plot
from conv2d_ext.bench.measure import Row
from conv2d_ext.cli import main

H200 = Path(__file__).resolve().parents[2] / "docs/performance/h200.json"
STRICT = H200.with_name("h200-strict.json")


def measured(text: str, ours_ms: float) -> Row:
    times = {"ours_ms": ours_ms, "cudnn_ms": 2 * ours_ms, "ratio": 2.0, "floor_ms": ours_ms / 2}
    rest = {"tflops": 1.0, "rel_error": 1e-7, "cudnn_rel_error": 1e-7}
    return Row(text, text, "fwd", "ieee", "nchw", "cuda_lines", **times, **rest)


@pytest.fixture
def matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="the extra conv2d-ext[plot] is not installed")


@pytest.mark.usefixtures("matplotlib")
def test_svg_says_what_was_measured(tmp_path: Path) -> None:
    picture = tmp_path / "folder" / "h200.svg"
    assert main(["plot", str(STRICT), str(picture), "--precisions", "ieee"]) == 0
    texts = " ".join(ElementTree.parse(picture).getroot().itertext())
    rows = json.loads(STRICT.read_text())["rows"]
    for name in {row["shape"] for row in rows}:
        assert name in texts
    for words in ("NVIDIA H200", "float32, strict", "times as fast as cuDNN", "roofline", "1x"):
        assert words in texts
    assert "TF32" not in texts


@pytest.mark.usefixtures("matplotlib")
def test_only_what_was_asked_for_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "h200.svg"
    asked = ["--precisions", "tf32", "--layouts", "nchw", "--directions", "dgrad,wgrad"]
    assert main(["plot", str(H200), str(picture), *asked]) == 0
    texts = " ".join(ElementTree.parse(picture).getroot().itertext())
    assert "float32 with TF32, PyTorch's default, NCHW" in texts
    assert "weight gradient, mean" in texts
    assert "forward, mean" not in texts
    assert "channels_last" not in texts


@pytest.mark.usefixtures("matplotlib")
def test_no_point_lies_above_the_roof() -> None:
    """The place of a point is its rate and its intensity, of the work that cannot be left out."""
    row = measured("n2c8h6w6 k4r3s3 pad1,1,1,1", ours_ms=1.0)
    intensity, tflops = plot._place(row)
    flops, elements = 2 * 2 * 4 * 8 * 16 * 16, 2 * 8 * 36 + 4 * 8 * 9 + 2 * 4 * 36
    assert tflops == pytest.approx(flops / 1e9)
    assert intensity == pytest.approx(flops / (4 * elements))
    axes = importlib.import_module("matplotlib.pyplot").figure().add_subplot()
    xs, ys = plot._draw_roof(axes, 8e12, 2e12, (1.0, 16.0))
    assert (xs, ys) == ([1.0, 4.0, 16.0], [2.0, 8.0, 8.0])


@pytest.mark.usefixtures("matplotlib")
def test_the_same_rows_make_the_same_file(tmp_path: Path) -> None:
    pictures = tmp_path / "a.svg", tmp_path / "b.svg"
    for picture in pictures:
        main(["plot", str(H200), str(picture), "--precisions", "bf16"])
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


@pytest.mark.usefixtures("matplotlib")
def test_training_steps_are_drawn(tmp_path: Path) -> None:
    out, picture = tmp_path / "rows.json", tmp_path / "rows.svg"
    command = ["bench", "n1c4h6w7 k4r3s3", "--device", "cpu", "--seconds", "0.001"]
    assert main([*command, "--direction", "forward,training_step", "--json", str(out)]) == 0
    assert main(["plot", str(out), str(picture), "--direction", "training_step"]) == 0
    texts = " ".join(ElementTree.parse(picture).getroot().itertext())
    assert "training step, mean" in texts
    assert "forward, mean" not in texts
    row = measured("n2c8h6w6 k4r3s3 pad1,1,1,1", ours_ms=1.0)
    moved = 3 * (2 * 8 * 36 + 4 * 8 * 9 + 2 * 4 * 36)  # each pass reads two tensors, writes one
    flops = 3 * 2 * 2 * 4 * 8 * 16 * 16
    row.direction = "train"
    assert plot._place(row) == pytest.approx((flops / (4 * moved), flops / 1e9))


@pytest.mark.usefixtures("matplotlib")
def test_bench_draws_what_it_measured(tmp_path: Path) -> None:
    picture = tmp_path / "rows.png"
    command = ["bench", "n1c4h6w7 k4r3s3", "--device", "cpu", "--seconds", "0.001"]
    assert main([*command, "--directions", "fwd", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("matplotlib")
def test_rows_that_cannot_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["plot", str(H200), str(tmp_path / "x.gif")]) == 2
    assert "must end in .png, .svg, .pdf" in capsys.readouterr().err
    assert main(["plot", str(H200), str(tmp_path / "x.svg"), "--precisions", "fp64"]) == 2
    assert "has no rows of fp64" in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def import_module(name: str, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return importlib.import_module(name, *rest)

    monkeypatch.setattr(plot, "import_module", import_module)
    measured = []
    monkeypatch.setattr(builtins, "print", lambda *args, **kwargs: measured.append(args))
    picture = str(tmp_path / "x.svg")
    assert main(["bench", "n1c4h6w7 k4r3s3", "--device", "cpu", "--plot", picture]) == 2
    assert len(measured) == 1, "it must say so before it measures"
    assert "pip install 'conv2d-ext[plot]'" in measured[0][0]
    assert main(["plot", str(H200), picture]) == 2
