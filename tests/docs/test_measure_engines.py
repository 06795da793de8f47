"""The script that times all engines, and what it makes of timings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]


engines = load_script("measure_engines")


def made_up(text: str, chosen_us: float, other_us: float) -> Any:
    timings = {
        "cuda_boxes": engines.Timing(10.0, chosen_us),
        "cuda_gemm": engines.Timing(20.0, other_us),
    }
    return engines.Row(text, "dgrad", "tf32", "nhwc", "cuda_boxes", timings)


def cells_of(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()[2:]]


def test_losses_are_relative_to_the_best_engine() -> None:
    rows = [made_up("right", 20.0, 30.0), made_up("wrong", 40.0, 10.0)]
    ((precision, layout, direction, count, loss, wrong, *worst),) = cells_of(
        engines.choices_table(rows)
    )
    assert (precision, layout, direction) == ("tf32", "channels_last", "input_grad")
    assert (count, loss, wrong) == ("2", "100.0%", "1")  # the mean of 1 and 4
    assert " ".join(worst) == "4.00x wrong, cuda_boxes instead of cuda_gemm"
    ((*_, worst),) = cells_of(engines.choices_table(rows[:1]))
    assert worst == "-"


def test_predictions_are_compared_with_times() -> None:
    rows = [made_up("a", 20.0, 30.0), made_up("b", 20.0, 30.0), made_up("c", 20.0, 30.0)]
    boxes, gemm = cells_of(engines.predictions_table(rows))
    assert boxes == ["cuda_boxes", "3", "2.00", "0%"]
    assert gemm == ["cuda_gemm", "3", "1.50", "0%"]


def test_engines_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "engines.json"
    options = ["--device", "cpu", "--precisions", "ieee", "--layouts", "nchw", "--seconds", "1e-4"]
    assert engines.main(["check", *options, "--directions", "fwd", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    rows = engines.read_rows(file)
    assert rows
    assert {row.direction for row in rows} == {"fwd"}
    for row in rows:
        assert len(row.engines) > 1
        assert row.loss >= 1
    assert json.loads(file.read_text())["machine"]["torch"]
    assert engines.main(["--read", str(file)]) == 0
    assert capsys.readouterr().out == shown


def test_the_committed_timings_can_be_read() -> None:
    rows = engines.read_rows(ROOT / "docs/developers/h200-engines.json")
    assert len(rows) > 2000
    kinds = {row.kind for row in rows}
    assert len(cells_of(engines.choices_table(rows))) == len(kinds) == 8


@pytest.mark.parametrize("arguments", [[], ["check", "--read", "file.json"]])
def test_it_measures_or_reads(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        engines.main(arguments)
