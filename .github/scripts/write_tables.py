"""Writes the tables of README.md and docs/performance/README.md from the committed measurements.

    python .github/scripts/write_tables.py

A page marks the place of a table by the lines `<!-- table: NAME -->` and `<!-- end of table -->`. A
test compares the pages with what this script makes, so that every figure comes from a file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from conv2d_ext._shape import TRAINING_STEP, Shape
from conv2d_ext.bench.measure import Row
from conv2d_ext.bench.report import geometric_mean, read_json
from conv2d_ext.bench.shapes import load_suite
from conv2d_ext.bench.standing import format_standing

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/performance/README.md")
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

DIRECTIONS = {"fwd": "forward", "dgrad": "input gradient", "wgrad": "weight gradient"}
PRECISIONS = {
    "tf32": "float32, TF32 allowed (default)",
    "bf16": "bfloat16",
    "ieee": "float32, strict",
}
LAYOUTS = {"nchw": "NCHW", "nhwc": "channels_last"}
MODES = {"infer": "inference", "train": "training"}

# The files, what they hold, and the commands that make them.
FILES = {
    "h200.json": (
        "the suite `full` in TF32 and bfloat16: all passes, both memory formats",
        "convx bench --preset full --precision tf32,bf16 --layout nchw,channels_last "
        "--seconds 0.006 --json docs/performance/h200.json",
    ),
    "h200-strict.json": (
        "the same in strict float32, NCHW",
        "convx bench --preset full --precision ieee --layout nchw "
        "--seconds 0.006 --json docs/performance/h200-strict.json",
    ),
    "h200-training.json": (
        "training steps of the suite `seed` in all precisions and both memory formats",
        "convx bench --preset seed --direction training_step --precision tf32,bf16,ieee "
        "--layout nchw,channels_last --seconds 0.02 --json docs/performance/h200-training.json",
    ),
    "h200-fused.json": (
        "forward passes of the suite `full` with bias and ReLU, without and with a residual, NCHW",
        "convx bench --preset full --direction forward --precision tf32,bf16 --layout nchw --bias "
        "--activation relu --residual both --seconds 0.006 "
        "--json docs/performance/h200-fused.json",
    ),
    "h200-models.json": (
        "whole models, 128 images of 224 x 224",
        "python .github/scripts/measure_models.py --seconds 0.15 "
        "--json docs/performance/h200-models.json",
    ),
    "h200-networks.json": (
        "60 layers of real networks, 32 images",
        "convx bench --preset models_32 --sample 60 --direction forward,input_grad "
        "--precision tf32,bf16 --layout nchw,channels_last --seconds 0.005 "
        "--json docs/performance/h200-networks.json",
    ),
    "h200-accuracy.json": (
        "errors of strict float32 against float64",
        "convx bench --preset accuracy --precision ieee --seconds 0.005 "
        "--json docs/performance/h200-accuracy.json",
    ),
    "cpu.json": (
        "the suite `cpu`, two threads",
        "convx bench --device cpu --threads 2 --seconds 0.2 --json docs/performance/cpu.json",
    ),
    "cpu-avx512.json": (
        "the same on a CPU with AVX-512",
        "convx bench --device cpu --threads 2 --seconds 1 --json docs/performance/cpu-avx512.json",
    ),
}

# Files that need not be there: a page then says how to make them.
OPTIONAL_FILES = ("h200-training.json",)
# The files whose training steps the page shows; the first that has a row of a kind decides.
TRAINING_FILES = ("h200-training.json", "h200.json", "h200-strict.json")

# Where the layers of the suite `full` come from.
ORIGINS = {
    "seed80": "KernelBench level 1, problem 80; one of the three workloads this project began with",
    "seed63": "KernelBench level 1, problem 63; likewise",
    "seed62": "KernelBench level 1, problem 62; likewise",
    "kb50": "KernelBench level 1, problem 50: AlexNet's first layer",
    "kb55": "KernelBench level 1, problem 55",
    "kb56": "KernelBench level 1, problem 56",
    "kb82dw": "KernelBench level 1, problem 82",
    "kb83dw": "KernelBench level 1, problem 83",
    "kb85dw": "KernelBench level 1, problem 85",
    "kb87pw": "KernelBench level 1, problem 87",
    "rn_stem": "ResNet-50, first layer",
    "rn_56_1x1": "ResNet-50, first stage",
    "rn_56_3x3": "ResNet-50, first stage",
    "rn_56s2": "ResNet-50, between the first and the second stage",
    "rn_28_3x3": "ResNet-50, second stage",
    "rn_14_3x3": "ResNet-50, third stage",
    "rn_7_3x3": "ResNet-50, fourth stage",
    "resnext_g32": "ResNeXt-50 32x4d, first stage",
    "convnext_dw7": "ConvNeXt-T, first stage",
    "mbv2_dw3s2": "MobileNetV2",
    "aspp_d12": "DeepLabV3's spatial pyramid",
    "unet_64": "U-Net, width 64, second level",
    "sd_b1_64": "Stable Diffusion's U-Net, one 512 x 512 image with guidance",
}
README_LAYERS = (
    "seed62",
    "seed63",
    "kb50",
    "kb82dw",
    "convnext_dw7",
    "resnext_g32",
    "rn_56s2",
    "sd_b1_64",
)


class NotMeasured(Exception):
    """The files do not have what a table needs."""


class Measurements:
    """The files of docs/performance, each read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, tuple[list[Row], dict[str, Any]]] = {}

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def rows(self, name: str) -> list[Row]:
        """The rows of single passes, by the engines that a call gets."""
        return [row for row in self._chosen(name) if row.direction in DIRECTIONS]

    def training_rows(self) -> list[Row]:
        """The rows of training steps, from every file that may have some."""
        names = [name for name in TRAINING_FILES if self.has(name)]
        rows = [row for name in names for row in self._chosen(name)]
        return [row for row in rows if row.direction == TRAINING_STEP]

    def _chosen(self, name: str) -> list[Row]:
        if name not in self._files:
            if not self.has(name):
                raise NotMeasured(f"there is no {name}")
            self._files[name] = read_json(self._folder / name)
        return [row for row in self._files[name][0] if row.chosen]

    def suite(self) -> list[Row]:
        """The rows of the suite `full` in all precisions."""
        return self.rows("h200.json") + self.rows("h200-strict.json")

    def document(self, name: str) -> dict[str, Any]:
        if not self.has(name):
            raise NotMeasured(f"there is no {name}")
        return json.loads((self._folder / name).read_text())

    def models(self) -> list[dict[str, Any]]:
        return self.document("h200-models.json")["models"]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def times_text(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def milliseconds_text(ms: float) -> str:
    return f"{ms:.3g}"


def bytes_text(count: int | None) -> str:
    if count is None:
        raise NotMeasured("the rows do not say how much memory was taken")
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def select(rows: Iterable[Row], **wanted: str) -> list[Row]:
    found = [row for row in rows if all(getattr(row, k) == v for k, v in wanted.items())]
    if not found:
        raise NotMeasured(f"there is no row of {wanted}")
    return found


def best_cudnn(rows: Iterable[Row]) -> dict[tuple[str, str, str], float]:
    """cuDNN's time in the memory format that is faster for it, where both were measured."""
    times: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        key = row.shape, row.direction, row.precision
        times.setdefault(key, {})[row.layout] = row.cudnn_ms
    return {key: min(each.values()) for key, each in times.items() if len(each) == len(LAYOUTS)}


def words(shape: Shape) -> str:
    """A layer, as one says it."""
    kind = "" if shape.groups == 1 else f", {shape.groups} groups"
    if shape.groups == shape.C == shape.K:
        kind = " depthwise"
    channels = f"{shape.C} channels"
    if shape.C != shape.K:
        channels = f"{shape.C} to {shape.K} channels"
    text = f"{shape.R}x{shape.S}{kind}"
    if shape.stride != (1, 1):
        text += ", stride {}".format("x".join(map(str, dict.fromkeys(shape.stride))))
    if shape.dilation != (1, 1):
        text += ", dilation {}".format("x".join(map(str, dict.fromkeys(shape.dilation))))
    images = "image" if shape.N == 1 else "images"
    return f"{text}, {channels}, {shape.N} {images} of {shape.H} x {shape.W}"


def models_table(data: Measurements) -> str:
    rows = data.models()
    columns = [(layout, mode) for layout in LAYOUTS for mode in MODES]
    header = ["model", "precision"]
    header += [f"{LAYOUTS[layout]} {MODES[mode]}" for layout, mode in columns]
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for precision in ("tf32", "bf16"):
            mine = {
                (row["layout"], row["mode"]): row
                for row in rows
                if (row["model"], row["precision"]) == (model, precision)
            }
            cells = [
                f"{milliseconds_text(mine[key]['ours_ms'])} ms, {times_text(mine[key]['ratio'])}"
                for key in columns
            ]
            lines.append(
                [model, {"tf32": "float32 (TF32)", "bf16": "bf16 autocast"}[precision], *cells]
            )
    means = []
    for layout, mode in columns:
        ratios = [r["ratio"] for r in rows if (r["layout"], r["mode"]) == (layout, mode)]
        means.append(f"**{times_text(geometric_mean(ratios))}**")
    return table(header, [*lines, ["**geometric mean**", "", *means]])


def models_memory_table(data: Measurements) -> str:
    rows = [row for row in data.models() if row["mode"] == "train"]
    columns = [(layout, precision) for layout in LAYOUTS for precision in ("tf32", "bf16")]
    header = ["model, training"] + [f"{LAYOUTS[layout]} {p}" for layout, p in columns]
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = {(r["layout"], r["precision"]): r for r in rows if r["model"] == model}
        pairs = [
            (bytes_text(mine[key]["ours_peak_bytes"]), bytes_text(mine[key]["torch_peak_bytes"]))
            for key in columns
        ]
        lines.append([model, *(f"{ours} ({theirs})" for ours, theirs in pairs)])
    return table(header, lines)


def means_table(data: Measurements) -> str:
    rows = data.suite()
    best = best_cudnn(rows)
    lines = []
    for precision, precision_words in PRECISIONS.items():
        for layout, layout_words in LAYOUTS.items():
            kind = [r for r in rows if (r.precision, r.layout) == (precision, layout)]
            if not kind:
                continue
            cells = [mean_cell(kind, direction, best) for direction in DIRECTIONS]
            behind = sum(row.ratio < 1 for row in kind)
            worst = min(kind, key=lambda row: row.ratio)
            slowest = f"{worst.shape} {DIRECTIONS[worst.direction]}, {times_text(worst.ratio)}"
            name = f"{precision_words}, {layout_words}"
            lines.append([name, *cells, f"{behind} of {len(kind)}", slowest])
    header = ["precision, memory format", *DIRECTIONS.values(), "slower than cuDNN", "slowest"]
    return table(header, lines)


def mean_cell(rows: Sequence[Row], direction: str, best: dict[tuple[str, str, str], float]) -> str:
    mine = [row for row in rows if row.direction == direction]
    if not mine:
        return ""
    text = times_text(geometric_mean(row.ratio for row in mine))
    keys = [(row.shape, row.direction, row.precision) for row in mine]
    if all(key in best for key in keys):
        ratios = [best[key] / row.ours_ms for key, row in zip(keys, mine, strict=True)]
        text += f" ({times_text(geometric_mean(ratios))})"
    return text


def layers_table(data: Measurements) -> str:
    """Default precision and memory format, with the largest workspace of the three directions."""
    rows = select(data.rows("h200.json"), precision="tf32", layout="nchw")
    lines = []
    for name in README_LAYERS:
        mine = select(rows, shape=name)
        cells = [
            ratio_cell(row) for direction in DIRECTIONS for row in select(mine, direction=direction)
        ]
        memory = [largest(row.workspace_bytes for row in mine)]
        memory += [largest(row.cudnn_workspace_bytes for row in mine)]
        layer = f"`{name}`: {words(Shape.parse(mine[0].text))}"
        lines.append([layer, *cells, *map(bytes_text, memory)])
    header = ["layer", *DIRECTIONS.values(), "workspace", "cuDNN's workspace"]
    return table(header, lines)


def networks_table(data: Measurements) -> str:
    standing = format_standing(data.rows("h200-networks.json"))
    return table(standing.header, standing.rows)


def largest(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return max(known) if known else None


def ratio_cell(row: Row) -> str:
    return f"{milliseconds_text(row.ours_ms)} ms, {times_text(row.ratio)}"


def memory_line(data: Measurements) -> str:
    rows = data.suite()
    if any(row.workspace_bytes is None for row in rows):
        raise NotMeasured("the rows of the suite do not say how much memory was taken")
    ours = max(rows, key=lambda row: row.workspace_bytes)
    theirs = max(rows, key=lambda row: row.cudnn_workspace_bytes)
    return (
        "The largest workspace that a call takes on the suite is "
        f"{bytes_text(ours.workspace_bytes)} for convx ({case_words(ours)}) and "
        f"{bytes_text(theirs.cudnn_workspace_bytes)} for cuDNN ({case_words(theirs)})."
    )


def case_words(row: Row) -> str:
    precision = {"tf32": "TF32", "bf16": "bf16", "ieee": "strict float32"}[row.precision]
    return f"`{row.shape}`, {DIRECTIONS[row.direction]}, {precision}, {LAYOUTS[row.layout]}"


def accuracy_line(data: Measurements) -> str:
    rows = select(data.rows("h200-accuracy.json"), shape="acc_5x5_g2", direction="wgrad")
    row = select(rows, layout="nchw", precision="ieee")[0]
    return (
        f"In strict float32, the weight gradient of one grouped layer "
        f"({words(Shape.parse(row.text))}) has a relative error of {row.rel_error:.0e} with convx "
        f"and of {row.cudnn_rel_error:.0e} with cuDNN, against float64."
    )


def accuracy_table(data: Measurements) -> str:
    rows = select(data.rows("h200-accuracy.json"), precision="ieee", layout="nchw")
    lines = []
    for shape in dict.fromkeys(row.shape for row in rows):
        mine = {row.direction: row for row in rows if row.shape == shape}
        cells = [f"{mine[d].rel_error:.1e} ({mine[d].cudnn_rel_error:.1e})" for d in DIRECTIONS]
        lines.append([words(Shape.parse(mine["fwd"].text)), *cells])
    return table(["layer", *DIRECTIONS.values()], lines)


def direction_table(
    read: Callable[[Measurements], list[Row]], direction: str, layout: str
) -> Callable[[Measurements], str]:
    def make(data: Measurements) -> str:
        rows = select(read(data), direction=direction, layout=layout)
        precisions = [p for p in PRECISIONS if any(row.precision == p for row in rows)]
        lines = []
        for shape in dict.fromkeys(row.shape for row in rows):
            mine = {row.precision: row for row in rows if row.shape == shape}
            lines.append([shape, *(engine_cell(mine[p]) for p in precisions)])
        means = [geometric_mean(r.ratio for r in select(rows, precision=p)) for p in precisions]
        lines.append(["**geometric mean**", *(f"**{times_text(mean)}**" for mean in means)])
        return table(["layer", *(PRECISIONS[p] for p in precisions)], lines)

    return make


def compared_cell(row: Row) -> str:
    times = f"{milliseconds_text(row.ours_ms)} ({milliseconds_text(row.cudnn_ms)})"
    return f"{times} {times_text(row.ratio)}"


def engine_cell(row: Row) -> str:
    return f"{compared_cell(row)} {row.engine.removeprefix('cuda_')}"


def training_table(data: Measurements) -> str:
    """The seed workloads: a line for each memory format, a column for each precision measured."""
    names = [shape.name for shape in load_suite("seed")]
    found: dict[tuple[str, str, str], Row] = {}
    for row in data.training_rows():
        if row.shape in names and not row.bias:
            found.setdefault((row.shape, row.layout, row.precision), row)
    if not found:
        _, command = FILES["h200-training.json"]
        return f"Not measured yet. This command measures them:\n\n```bash\n{command}\n```"
    precisions = [p for p in PRECISIONS if any(key[2] == p for key in found)]
    lines = []
    for layout, layout_words in LAYOUTS.items():
        for name in names:
            mine = [found.get((name, layout, precision)) for precision in precisions]
            if any(mine):
                cells = ["" if row is None else compared_cell(row) for row in mine]
                lines.append([f"`{name}`, {layout_words}", *cells])
    ratios = [[row.ratio for key, row in found.items() if key[2] == p] for p in precisions]
    means = [f"**{times_text(geometric_mean(each))}**" for each in ratios]
    lines.append(["**geometric mean**", *means])
    return table(["layer, memory format", *(PRECISIONS[p] for p in precisions)], lines)


def fused_table(data: Measurements) -> str:
    """Layers with a ReLU, without and with a residual: against PyTorch's operators, and in brackets
    against these behind convx's own convolution."""
    rows = data.rows("h200-fused.json")
    columns = [(residual, p) for residual in (False, True) for p in ("tf32", "bf16")]

    def ratios(row: Row) -> tuple[float, float]:
        assert row.unfused_ms is not None, row
        return row.ratio, row.unfused_ms / row.ours_ms

    found = {(row.shape, row.residual, row.precision): row for row in rows}
    lines = []
    for shape in dict.fromkeys(row.shape for row in rows):
        mine = [found[(shape, *column)] for column in columns]
        cells = [
            "{}, {} ({})".format(milliseconds_text(row.ours_ms), *map(times_text, ratios(row)))
            for row in mine
        ]
        lines.append([shape, *cells])
    means = ["**geometric mean**"]
    for residual, precision in columns:
        mine = [r for r in rows if (r.residual, r.precision) == (residual, precision)]
        eager, unfused = (
            times_text(geometric_mean(each)) for each in zip(*map(ratios, mine), strict=True)
        )
        means.append(f"**{eager}** ({unfused})")
    names = [("residual + " if r else "") + f"ReLU, {PRECISIONS[p]}" for r, p in columns]
    return table(["layer", *names], [*lines, means])


def workspace_table(data: Measurements) -> str:
    rows = select(data.suite(), layout="nchw")
    lines = []
    for shape in dict.fromkeys(row.shape for row in rows):
        cells = []
        for precision in PRECISIONS:
            mine = select(rows, shape=shape, precision=precision)
            ours = bytes_text(largest(row.workspace_bytes for row in mine))
            theirs = bytes_text(largest(row.cudnn_workspace_bytes for row in mine))
            cells.append(f"{ours} ({theirs})")
        lines.append([shape, *cells])
    return table(["layer", *PRECISIONS.values()], lines)


def names_table(data: Measurements) -> str:
    shapes = load_suite("full")
    return table(
        ["name", "layer", "from"],
        [[f"`{shape.name}`", words(shape), ORIGINS[shape.name]] for shape in shapes],
    )


def files_table(data: Measurements) -> str:
    lines = []
    for name, (content, command) in FILES.items():
        if name in OPTIONAL_FILES and not data.has(name):
            continue
        machine = data.document(name)["machine"]
        measured = f"{machine['device']}, torch {machine['torch']}"
        measured += f", cuDNN {machine['cudnn']}" if machine["cudnn"] else ""
        measured += f"; revision {machine['revision']}, {machine.get('date', 'undated')}"
        lines.append([f"`{name}`", content, measured, f"`{command}`"])
    return table(["file", "content", "measured with", "command"], lines)


def cpu_table(file: str) -> Callable[[Measurements], str]:
    def write(data: Measurements) -> str:
        rows = data.rows(file)
        lines = []
        for shape in dict.fromkeys(row.shape for row in rows):
            mine = [select(rows, shape=shape, direction=d)[0] for d in DIRECTIONS]
            layer = f"`{shape}`: {words(Shape.parse(mine[0].text))}"
            lines.append([layer, *(ratio_cell(row) for row in mine)])
        means = [geometric_mean(row.ratio for row in select(rows, direction=d)) for d in DIRECTIONS]
        lines.append(["**geometric mean**", *(f"**{times_text(mean)}**" for mean in means)])
        return table(["layer", *DIRECTIONS.values()], lines)

    return write


TABLES: dict[str, Callable[[Measurements], str]] = {
    "accuracy-line": accuracy_line,
    "accuracy": accuracy_table,
    "cpu": cpu_table("cpu.json"),
    "cpu-avx512": cpu_table("cpu-avx512.json"),
    "files": files_table,
    "fused": fused_table,
    "layers": layers_table,
    "means": means_table,
    "memory-line": memory_line,
    "models": models_table,
    "models-memory": models_memory_table,
    "names": names_table,
    "networks": networks_table,
    "training": training_table,
    "workspace": workspace_table,
    **{
        f"{direction}-{layout}": direction_table(Measurements.suite, direction, layout)
        for direction in DIRECTIONS
        for layout in LAYOUTS
    },
}


def rewrite(text: str, data: Measurements) -> tuple[str, list[str]]:
    """The page with its tables as the files have them, and which tables could not be made."""
    problems = []

    def replace(block: re.Match[str]) -> str:
        name = block[2]
        try:
            return f"{block[1]}\n{TABLES[name](data)}\n\n{block[3]}"
        except NotMeasured as error:
            problems.append(f"{name}: {error}")
            return block[0]

    return BLOCK.sub(replace, text), problems


def main() -> int:
    data = Measurements(ROOT / "docs/performance")
    failed = False
    for page in PAGES:
        path = ROOT / page
        text, problems = rewrite(path.read_text(), data)
        path.write_text(text)
        for problem in problems:
            print(f"{page}: left as it is: {problem}", file=sys.stderr)
        failed |= bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
