"""Every figure of the pages comes from a committed file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from pages import ROOT
from scripts import load_script
from torch import nn

from conv2d_ext._shape import LAYOUTS, PASSES
from conv2d_ext.bench.measure import Row
from conv2d_ext.bench.shapes import load_suite

MACHINE = {"device": "a GPU", "torch": "2.11", "cudnn": 91900, "revision": "1234567"}


tables = load_script("write_tables")
models = load_script("measure_models")


@pytest.mark.parametrize("page", tables.PAGES)
def test_the_page_has_what_the_files_have(page: str) -> None:
    """If it fails: python .github/scripts/write_tables.py"""
    text = (ROOT / page).read_text()
    made, problems = tables.rewrite(text, tables.Measurements(ROOT / "docs/performance"))
    assert not problems
    assert made == text


def made_up_row(shape, direction: str, precision: str, layout: str) -> Row:
    """cuDNN is twice as slow in NCHW, and as fast as convx in channels_last, but for one row."""
    ours, theirs = 2.0, 4.0 if layout == "nchw" else 2.0
    if (shape.name, direction, layout) == ("kb50", "dgrad", "nchw"):
        theirs = 0.5
    return Row(
        shape=shape.name,
        text=shape.text,
        direction=direction,
        precision=precision,
        layout=layout,
        engine="cuda_lines",
        ours_ms=ours,
        cudnn_ms=theirs,
        ratio=theirs / ours,
        floor_ms=1.0,
        tflops=1.0,
        rel_error=4e-7,
        cudnn_rel_error=3e-3,
        cublas_ms=1.0,
        untuned_ms=2.5,
        workspace_bytes=230_000_000,
        cudnn_workspace_bytes=9_200_000_000,
    )


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    suites = {
        "h200.json": ("full", ("tf32", "bf16")),
        "h200-strict.json": ("full", ("ieee",)),
        "h200-networks.json": ("resnet50", ("tf32", "bf16")),
        "h200-accuracy.json": ("accuracy", ("ieee",)),
        "cpu.json": ("cpu", ("ieee",)),
        "cpu-avx512.json": ("cpu", ("ieee",)),
    }
    for name, (suite, precisions) in suites.items():
        rows = [
            asdict(made_up_row(shape, direction, precision, layout))
            for shape in load_suite(suite)
            for direction in PASSES
            for precision in precisions
            for layout in LAYOUTS
        ]
        (tmp_path / name).write_text(json.dumps({"machine": MACHINE, "rows": rows}))
    fused = [
        {**asdict(row), "bias": True, "activation": "relu", "residual": residual, "unfused_ms": 3.0}
        for shape in load_suite("full")
        for precision in ("tf32", "bf16")
        for residual in (False, True)
        for row in [made_up_row(shape, "fwd", precision, "nchw")]
    ]
    (tmp_path / "h200-fused.json").write_text(json.dumps({"machine": MACHINE, "rows": fused}))
    steps = [
        {
            "model": model,
            "layout": layout,
            "precision": precision,
            "mode": mode,
            "ours_ms": 10.0,
            "torch_ms": 15.0,
            "ratio": 1.5,
            "ours_peak_bytes": 2_000_000_000,
            "torch_peak_bytes": 3_000_000_000,
        }
        for model in models.MODELS
        for layout in LAYOUTS
        for precision in ("tf32", "bf16")
        for mode in ("infer", "train")
    ]
    (tmp_path / "h200-models.json").write_text(json.dumps({"machine": MACHINE, "models": steps}))
    return tmp_path


def write_training_steps(folder: Path, name: str = "h200-training.json") -> None:
    """With a bias, steps are ten times as fast as cuDNN: such rows are not of the table."""
    rows = []
    for bias in (False, True):
        for shape in load_suite("seed"):
            row = made_up_row(shape, "train", "tf32", "nchw")
            ratio = 10.0 if bias else row.ratio
            rows.append({**asdict(row), "bias": bias, "ratio": ratio})
    path = folder / name
    document = json.loads(path.read_text()) if path.exists() else {"machine": MACHINE, "rows": []}
    path.write_text(json.dumps({**document, "rows": document["rows"] + rows}))


@pytest.mark.parametrize("name", ["h200-training.json", "h200.json"])
def test_training_steps_are_in_their_table_alone(name: str, measured: Path) -> None:
    others = [name for name in tables.TABLES if name not in ("training", "files")]
    before = {name: tables.TABLES[name](tables.Measurements(measured)) for name in others}
    assert "Not measured yet" in tables.training_table(tables.Measurements(measured))
    write_training_steps(measured, name)
    data = tables.Measurements(measured)
    assert {name: tables.TABLES[name](data) for name in others} == before
    header, _, *lines = tables.training_table(data).splitlines()
    assert header == "| layer, memory format | float32, TF32 allowed (default) |"
    assert lines == [
        "| `seed62`, NCHW | 2 (4) 2.00x |",
        "| `seed63`, NCHW | 2 (4) 2.00x |",
        "| `seed80`, NCHW | 2 (4) 2.00x |",
        "| **geometric mean** | **2.00x** |",
    ]


def test_the_file_of_training_steps_is_listed_once_it_is_there(measured: Path) -> None:
    assert "h200-training.json" not in tables.files_table(tables.Measurements(measured))
    write_training_steps(measured)
    assert "| `h200-training.json` |" in tables.files_table(tables.Measurements(measured))


@pytest.mark.parametrize("page", tables.PAGES)
def test_every_table_can_be_made(page: str, measured: Path) -> None:
    text = (ROOT / page).read_text()
    assert text.count("<!-- table: ") == len(tables.BLOCK.findall(text)) >= 5
    made, problems = tables.rewrite(text, tables.Measurements(measured))
    assert not problems
    assert tables.rewrite(made, tables.Measurements(measured)) == (made, [])


def test_means_count_losses_and_cudnns_better_layout(measured: Path) -> None:
    lines = tables.means_table(tables.Measurements(measured)).splitlines()
    default = next(line for line in lines if "TF32 allowed (default), NCHW" in line)
    _, _, forward, input_grad, weight_grad, behind, slowest, _ = map(str.strip, default.split("|"))
    assert forward == weight_grad == "2.00x (1.00x)"
    mean = 2 * (0.25 / 2) ** (1 / 23)
    better = 0.25 ** (1 / 23)
    assert input_grad == f"{mean:.2f}x ({better:.2f}x)"
    assert behind == "1 of 69"
    assert slowest == "kb50 input gradient, 0.25x"


def test_networks_count_their_slow_layers(measured: Path) -> None:
    file = measured / "h200-networks.json"
    document = json.loads(file.read_text())
    kind = {"direction": "dgrad", "precision": "tf32", "layout": "nchw"}
    of_kind = [row for row in document["rows"] if kind.items() <= row.items()]
    of_kind[0]["ratio"], of_kind[1]["ratio"] = 0.94, 0.5
    file.write_text(json.dumps(document))
    lines = tables.networks_table(tables.Measurements(measured)).splitlines()[2:]
    cells = {}
    for line in lines:
        layout, precision, direction, _, *rest = (cell.strip() for cell in line.split("|")[1:-1])
        cells[layout, precision, direction] = rest
    assert len(cells) == 12
    layers = str(len(of_kind))
    assert cells["nchw", "tf32", "forward"][:5] == [layers, "2.00x", "0", "0", "0"]
    layers_behind, worst = ["2", "2", "1"], ["0.50x", of_kind[1]["shape"]]
    assert cells["nchw", "tf32", "input_grad"][2:] == [*layers_behind, *worst]


def test_lines_of_memory_and_accuracy(measured: Path) -> None:
    data = tables.Measurements(measured)
    assert "0.23 GB for convx" in tables.memory_line(data)
    assert "9.20 GB for cuDNN" in tables.memory_line(data)
    line = tables.accuracy_line(data)
    assert "5x5, 2 groups, 64 channels" in line
    assert "4e-07 with convx" in line
    assert "3e-03 with cuDNN" in line


def test_a_missing_file_leaves_a_table_alone(tmp_path: Path) -> None:
    text = "<!-- table: models -->\nold\n<!-- end of table -->"
    made, problems = tables.rewrite(text, tables.Measurements(tmp_path))
    assert made == text
    assert problems == ["models: there is no h200-models.json"]


def test_models_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(name: str) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))

    monkeypatch.setattr(models, "MODELS", {"tiny": tiny})
    out = tmp_path / "models.json"
    small = ["--batch", "1", "--extent", "8", "--seconds", "0.001", "--device", "cpu"]
    assert models.main([*small, "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["machine"]["torch"]
    kinds = [(row["layout"], row["precision"], row["mode"]) for row in document["models"]]
    assert kinds == [
        (a, b, c) for a in LAYOUTS for b in ("tf32", "bf16") for c in ("infer", "train")
    ]
    for row in document["models"]:
        assert row["ratio"] == pytest.approx(row["torch_ms"] / row["ours_ms"])
    with pytest.raises(SystemExit):
        models.main(["nothing", *small, "--json", str(out)])
    with pytest.raises(SystemExit):
        models.main([*small, "--json", str(tmp_path / "no folder" / "models.json")])
