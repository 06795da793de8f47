"""Measures whole models, as they are and converted, and writes docs/performance/h200-models.json.

    python .github/scripts/measure_models.py --json docs/performance/h200-models.json

Each model takes an inference and a training step of 128 images in both memory formats, in float32
with PyTorch's defaults (TF32 allowed in convolutions) and under autocast in bfloat16, eager and,
with --compiled, through torch.compile. Weights are random. It needs a GPU, torchvision and timm.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from conv2d_ext.bench.report import describe_machine
from conv2d_ext.measuring.timing import autotuned
from conv2d_ext.step import Autocast, measure_steps

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
PRECISIONS = {"tf32": None, "bf16": torch.bfloat16}


def torchvision_model(name: str) -> nn.Module:
    return getattr(importlib.import_module("torchvision.models"), name)()


def timm_model(name: str) -> nn.Module:
    return importlib.import_module("timm").create_model(name, pretrained=False)


MODELS: dict[str, Callable[[str], nn.Module]] = {
    "resnet50": torchvision_model,
    "resnext50_32x4d": torchvision_model,
    "mobilenet_v2": torchvision_model,
    "densenet121": torchvision_model,
    "vgg16_bn": torchvision_model,
    "convnext_tiny": timm_model,
    "efficientnet_b0": timm_model,
    "regnety_016": timm_model,
}


def measure_model(
    name: str,
    model: nn.Module,
    size: Sequence[int],
    device: torch.device,
    seconds: float,
    compiled: Sequence[bool],
) -> list[dict[str, Any]]:
    """A row for each layout, precision and mode."""
    rows = []
    for layout, memory_format in LAYOUTS.items():
        model = model.to(device, memory_format=memory_format)
        x = torch.randn(*size, device=device).contiguous(memory_format=memory_format)
        for precision, dtype in PRECISIONS.items():
            whole = Autocast(model, dtype)
            report = measure_steps(whole, x, seconds=seconds, compiled=compiled)
            for step in report.steps:
                row = {"model": name, "layout": layout, "precision": precision}
                rows.append({**row, **step.to_dict()})
                show = f"{step.original_ms:.2f} -> {step.converted_ms:.2f} ms, {step.ratio:.2f}x"
                print(f"{name} {layout} {precision} {step.title}: {show}", flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help=f"some of {', '.join(MODELS)}; default: all")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--compiled", action="store_true", help="through torch.compile, too")
    parser.add_argument("--extent", type=int, default=224, help="height and width of the images")
    parser.add_argument("--seconds", type=float, default=0.2, help="spent on each measurement")
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.models) - set(MODELS):
        parser.error(f"unknown model {', '.join(sorted(unknown))}")
    if not os.access(arguments.json.parent, os.W_OK):
        parser.error(f"cannot write to {arguments.json.parent}")
    size = (arguments.batch, 3, arguments.extent, arguments.extent)
    rows: list[dict[str, Any]] = []
    machine = describe_machine(arguments.device)
    with autotuned(allow_tf32=True):  # PyTorch's default, said aloud
        for name in arguments.models or MODELS:
            model = MODELS[name](name)
            compiled = (False, True) if arguments.compiled else (False,)
            rows += measure_model(name, model, size, arguments.device, arguments.seconds, compiled)
            # After every model: an interrupted run keeps what it has measured.
            document = {"machine": machine, "input": size, "models": rows}
            unfinished = arguments.json.with_suffix(".tmp")
            unfinished.write_text(json.dumps(document, indent=1) + "\n")
            unfinished.replace(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
