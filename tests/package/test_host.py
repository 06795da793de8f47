"""convx bench --host: the host's time per call, of every form of a call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conv2d_ext.bench.host import FORMS, WORK
from conv2d_ext.bench.report import read_json
from conv2d_ext.cli import main

SHAPES = ["n1c4h5w5 k4r3s3 pad1,1,1,1", "n1c4h5w5 k6r1s1 stride2x2"]
QUICK = ["bench", "--host", "--device", "cpu", "--seconds", "0.001"]


@pytest.mark.parametrize("bias", [[], ["--bias"]], ids=["no_bias", "bias"])
def test_every_form_and_kind_of_work_is_in_the_file(
    bias: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "host.json"
    assert main([*QUICK, *bias, *SHAPES, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["host_layers"]
    measured = [(row["form"], row["work"], row["autocast"]) for row in rows]
    assert measured == [(f, w, a) for a in (False, True) for f in FORMS for w in WORK]
    for row in rows:
        assert row["layers"] == 2
        assert row["ratio"] == pytest.approx(row["torch_us"] / row["ours_us"])
    out = capsys.readouterr().out
    assert "backward, autocast" in out
    assert read_json(file)[0] == []


def test_layers_that_pytorch_cannot_express_are_left_out(capsys: pytest.CaptureFixture) -> None:
    assert main([*QUICK, "n1c4h5w5 k4r3s3 pad1,0,0,0"]) != 0
    assert "same padding on opposite sides" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--csv", "a.csv"], ["--require", "1"]], ids=str)
def test_options_about_kernels_have_no_meaning(
    option: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert main([*QUICK, *SHAPES, *option]) != 0
    assert option[0] in capsys.readouterr().err
