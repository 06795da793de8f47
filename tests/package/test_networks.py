"""The preset of real networks' layers: its data, where they come from, and the report."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import pytest
from scripts import load_script

from conv2d_ext._shape import Shape
from conv2d_ext.bench import report
from conv2d_ext.bench.measure import Row
from conv2d_ext.bench.shapes import find_shape, load_suite, networks_of, suite_names
from conv2d_ext.bench.standing import format_losses, format_standing
from conv2d_ext.cli import _parser, main
from conv2d_ext.commands.bench import _cases
from conv2d_ext.measuring.case import Case
from conv2d_ext.measuring.timing import Timer

ROOT = Path(__file__).resolve().parents[2]
DATA = json.loads((ROOT / "conv2d_ext/bench/networks.json").read_text())
LAYERS: dict[str, dict[str, int]] = DATA["layers"]


script = load_script("list_layers")


def layers_of(network: str) -> dict[str, int]:
    return {text: counts[network] for text, counts in LAYERS.items() if network in counts}


def test_the_script_and_the_file_have_the_same_networks() -> None:
    inputs = {name: "c{}h{}w{}".format(*n.input) for name, n in script.NETWORKS.items()}
    assert inputs == DATA["inputs"]
    assert len(inputs) >= 10
    assert {name for counts in LAYERS.values() for name in counts} == set(inputs)


@pytest.mark.parametrize("name", script.NETWORKS)
def test_the_script_lists_what_the_file_has(name: str) -> None:
    network = script.NETWORKS[name]
    try:
        __import__(network.package)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision for another torch
        pytest.skip(f"{network.package} cannot be imported: {error}")
    assert script.list_layers(network) == layers_of(name)


def test_the_script_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert script.main(["espcn", "edsr", "--json", str(tmp_path / "networks.json")]) == 0
    text = (tmp_path / "networks.json").read_text()
    assert json.loads(text)["layers"] == {
        "n1c1h256w256 k64r5s5 pad2,2,2,2": {"espcn": 1},
        "n1c64h256w256 k32r3s3 pad1,1,1,1": {"espcn": 1},
        "n1c32h256w256 k9r3s3 pad1,1,1,1": {"espcn": 1},
        "n1c3h128w128 k256r3s3 pad1,1,1,1": {"edsr": 1},
        "n1c256h128w128 k256r3s3 pad1,1,1,1": {"edsr": 65},
        "n1c256h128w128 k1024r3s3 pad1,1,1,1": {"edsr": 1},
        "n1c256h256w256 k3r3s3 pad1,1,1,1": {"edsr": 1},
    }
    assert script.main(["espcn", "edsr"]) == 0
    assert capsys.readouterr().out == text
    with pytest.raises(SystemExit):
        script.main(["resnet51"])
    assert "unknown network resnet51" in capsys.readouterr().err


def test_the_file_is_as_the_script_writes_it() -> None:
    text = (ROOT / "conv2d_ext/bench/networks.json").read_text()
    assert text == script.format_document(script.NETWORKS, LAYERS), "one line for each layer"


def test_layers_are_shapes_for_one_image() -> None:
    for text, counts in LAYERS.items():
        shape = Shape.parse(text)
        assert shape.text == text
        assert shape.N == 1
        assert counts
        assert all(count >= 1 for count in counts.values())
    for name, size in DATA["inputs"].items():
        assert any(text.startswith(f"n1{size} ") for text in layers_of(name)), name


@pytest.mark.parametrize(
    ("network", "giga", "source"),
    [
        ("resnet50", 4.089, "torchvision's table of classification weights"),
        ("resnext50_32x4d", 4.230, "torchvision's table of classification weights"),
        ("mobilenet_v2", 0.301, "torchvision's table of classification weights"),
        ("mobilenet_v3_large", 0.217, "torchvision's table of classification weights"),
        ("deeplabv3_resnet50", 178.722, "torchvision's table of segmentation weights"),
        ("efficientnet_b0", 0.39, "table 2 of the EfficientNet paper"),
        ("regnety_016", 1.6, "its name in the RegNet paper, RegNetY-1.6GF"),
    ],
)
def test_a_network_has_its_published_number_of_products(
    network: str, giga: float, source: str
) -> None:
    """Linear layers are part of the published numbers; they are at most 2% of these networks."""
    flops = sum(count * Shape.parse(text).flops for text, count in layers_of(network).items())
    assert flops / 2e9 == pytest.approx(giga, rel=0.03), source


def test_resnet50_is_that_of_the_other_preset() -> None:
    other = {shape.with_batch(1).text for shape in load_suite("resnet50")}
    assert set(layers_of("resnet50")) == other


def test_presets_have_both_batches_or_one() -> None:
    one, many = load_suite("models_1"), load_suite("models_32")
    assert [shape.text for shape in one] == list(LAYERS)
    assert [shape.with_batch(1) for shape in many] == one
    assert {shape.N for shape in many} == {32}
    assert load_suite("models") == one + many
    assert [name for name in suite_names() if name.startswith("models")] == [
        "models",
        "models_1",
        "models_32",
    ]


def test_networks_of_a_layer_are_found_for_any_batch_and_dtype() -> None:
    found = networks_of(find_shape("rn_56_1x1"))
    assert found == {"resnet50": 4, "resnext50_32x4d": 1}
    assert networks_of(Shape.parse("n3c64h56w56 k256r1s1 bfloat16")) == found
    assert networks_of(Shape.parse("n1c64h57w56 k256r1s1")) == {}


def test_a_name_that_is_the_text_changes_with_the_batch() -> None:
    shape = find_shape("n1c64h56w56 k256r1s1").with_batch(8)
    assert (shape.name, shape.text) == ("n8c64h56w56 k256r1s1",) * 2
    assert find_shape("rn_56_1x1").with_batch(8).name == "rn_56_1x1"


def cases(*words: str) -> list[Case]:
    return _cases(_parser().parse_args(["bench", "--device", "cpu", *words]))


def test_one_batch_for_all_measures_every_layer_once() -> None:
    found = cases("--preset", "models", "--batch", "2", "--direction", "forward")
    assert len(found) == len(LAYERS)
    assert {case.shape.N for case in found} == {2}


def test_a_sample_is_evenly_spaced_and_always_the_same() -> None:
    whole = [case.shape for case in cases("--preset", "models_1", "--direction", "forward")]
    command = ["--preset", "models_1", "--direction", "forward", "--sample"]
    sample = [case.shape for case in cases(*command, "10")]
    assert sample == [case.shape for case in cases(*command, "10")]
    places = [whole.index(shape) for shape in sample]
    steps = [b - a for a, b in itertools.pairwise([*places, len(whole)])]
    assert len(sample) == 10
    assert places[0] == 0
    assert max(steps) - min(steps) <= 1
    assert [case.shape for case in cases(*command, "100000")] == whole
    both = cases("--preset", "models", "--direction", "forward", "--sample", "20")
    assert [case.shape.N for case in both] == [1] * 10 + [32] * 10
    passes = cases("--preset", "models_1", "--sample", "10", "--layout", "nchw,channels_last")
    assert len(passes) == 10 * 3 * 2, "N counts shapes, not measurements"


def made_up(text: str, ours: float, theirs: float, **changes) -> Row:
    values = {
        "shape": text,
        "text": text,
        "direction": "fwd",
        "precision": "tf32",
        "layout": "nchw",
        "engine": "cuda_lines",
        "ours_ms": ours,
        "cudnn_ms": theirs,
        "ratio": theirs / ours,
        "floor_ms": 0.1,
        "tflops": 1.0,
        "rel_error": 1e-4,
        "cudnn_rel_error": 1e-4,
        "networks": networks_of(Shape.parse(text)),
    }
    return Row(**{**values, **changes})


def test_standing_counts_what_is_behind() -> None:
    one, many = "n1c64h56w56 k256r1s1", "n32c64h56w56 k256r1s1"
    rows = [
        made_up(one, 1.0, 4.0),
        made_up(many, 1.0, 0.97),  # not below
        made_up(many, 1.0, 0.96),
        made_up(many, 1.0, 0.90),
        made_up("n32c2048h7w7 k512r1s1", 1.0, 0.25),
        made_up(many, 1.0, 0.01, chosen=False),
        made_up(one, 1.0, 2.0, layout="nhwc", direction="wgrad"),
    ]
    table = format_standing(rows)
    assert table.header[:3] == ["layout", "precision", "direction"]
    assert table.header[6:9] == ["below 0.97", "below 0.95", "below 0.85"]
    kind, worst = ["nchw", "tf32", "forward"], ["0.25x", "n32c2048h7w7 k512r1s1"]
    assert table.rows == [
        [*kind, "1", "1", "4.00x", "0", "0", "0", "4.00x", one],
        [*kind, "32", "4", "0.68x", "3", "2", "1", *worst],
        [*kind, "all", "5", "0.97x", "3", "2", "1", *worst],
        ["channels_last", "tf32", "weight_grad", "1", "1", "2.00x", "0", "0", "0", "2.00x", one],
    ]


def test_losses_are_the_largest_differences_of_time() -> None:
    """A layer that is 5% behind can lose more than others that take twice the time."""
    layer = "n1c64h56w56 k256r1s1"
    rows = [made_up(f"n1c{c}h9w9 k8r1s1", 0.02 + c / 1e6, 0.01) for c in range(1, 13)]
    rows += [made_up(layer, 10.0, 9.5), made_up(layer, 9.0, 10.0)]
    rows += [made_up(layer, 99.0, 1.0, chosen=False), made_up(layer, 2.0, 1.0, direction="dgrad")]
    heading, table = format_losses(rows, "cuDNN")
    assert "at most 10 for each" in heading
    assert table.rows[0] == [
        layer,
        "resnet50 x4, resnext50_32x4d",
        "nchw",
        "tf32",
        "forward",
        "cuda_lines",
        "10.0000",
        "9.5000",
        "0.5000",
        "0.95x",
    ]
    slowest = [f"n1c{c}h9w9 k8r1s1" for c in range(12, 3, -1)]
    assert [line[0] for line in table.rows[1:10]] == slowest
    assert [line[4] for line in table.rows] == ["forward"] * 10 + ["input_grad"]
    assert format_losses(rows[13:14], "cuDNN") == ["no layer is slower than cuDNN's"]


def test_command(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(Timer, "medians_ms", lambda self, calls: [1.0, 2.0][: len(calls)])
    files = tmp_path / "rows.json", tmp_path / "rows.csv"
    command = ["bench", "--preset", "models_1", "--sample", "2", "--device", "cpu"]
    command += ["--direction", "forward", "--seconds", "0.001"]
    assert main([*command, "--json", str(files[0]), "--csv", str(files[1])]) == 0
    captured = capsys.readouterr()
    assert "[2/2] n1c" in captured.err, "progress"
    assert "geometric mean  below 0.97" in captured.out
    assert "loses ms" in captured.out
    rows, _ = report.read_json(files[0])
    assert [row.networks for row in rows] == [networks_of(Shape.parse(row.text)) for row in rows]
    assert rows[0].networks == {"resnet50": 1, "resnext50_32x4d": 1}
    with files[1].open(newline="") as file:
        assert next(csv.DictReader(file))["networks"] == "resnet50, resnext50_32x4d"
    assert main([*command, "--compare", str(files[0])]) == 0
    out = capsys.readouterr().out
    assert out.split("before ms")[1].count("+0.0%") == 2
    document = json.loads(files[0].read_text())
    document["rows"][0]["networks"] = "resnet50"
    files[0].write_text(json.dumps(document))
    assert main([*command, "--compare", str(files[0])]) == 2
    assert "networks is 'resnet50'" in capsys.readouterr().err


def test_other_shapes_report_as_before(capsys: pytest.CaptureFixture) -> None:
    options = ["--device", "cpu", "--direction", "forward", "--seconds", "0.001"]
    assert main(["bench", "n1c8h8w8 k8r1s1", *options]) == 0
    out = capsys.readouterr().out
    assert "geometric mean" in out
    assert "below 0.97" not in out
    assert "loses ms" not in out


@pytest.mark.parametrize("page", ["docs/command-line.md", "docs/performance/README.md"])
def test_pages_say_how_many_layers_there_are(page: str) -> None:
    text = (ROOT / page).read_text()
    assert f"{len(LAYERS)} layers: every distinct convolution of" in text
    assert f"{len(DATA['inputs'])} networks" in text
