"""Pictures of a benchmark."""

from __future__ import annotations

import builtins
import importlib
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conv2d_ext.bench import plot
from conv2d_ext.cli import main

H200 = Path(__file__).resolve().parents[2] / "docs/performance/h200.json"


@pytest.fixture
def matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="the extra conv2d-ext[plot] is not installed")


@pytest.mark.usefixtures("matplotlib")
def test_svg_says_what_was_measured(tmp_path: Path) -> None:
    picture = tmp_path / "folder" / "h200.svg"
    assert main(["plot", str(H200), str(picture), "--precisions", "ieee"]) == 0
    texts = " ".join(ElementTree.parse(picture).getroot().itertext())
    rows = [row for row in json.loads(H200.read_text())["rows"] if row["precision"] == "ieee"]
    for name in {row["shape"] for row in rows}:
        assert name in texts
    for words in ("NVIDIA H200", "strict fp32", "times as fast as cuDNN", "roofline", "1x"):
        assert words in texts
    assert "TF32" not in texts


@pytest.mark.usefixtures("matplotlib")
def test_the_same_rows_make_the_same_file(tmp_path: Path) -> None:
    pictures = tmp_path / "a.svg", tmp_path / "b.svg"
    for picture in pictures:
        main(["plot", str(H200), str(picture), "--precisions", "bf16"])
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


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
