"""Models that people train, by name, on inputs that a CPU computes in a second or two."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class UNet(nn.Module):
    """Small, and always there: strided and transposed convolutions, skips, batch norm, biases."""

    def __init__(self, widths: tuple[int, ...] = (6, 12, 24), classes: int = 3) -> None:
        super().__init__()
        self.stem = self._block(3, widths[0])
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairs)
        self.encode = nn.ModuleList(self._block(b, b) for _, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs[::-1])
        self.decode = nn.ModuleList(self._block(2 * a, a) for a, _ in pairs[::-1])
        self.head = nn.Conv2d(widths[0], classes, 1)

    @staticmethod
    def _block(channels: int, filters: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, filters, (3, 5), padding="same", dilation=(1, 2)),
            nn.BatchNorm2d(filters),
            nn.GELU(),
            nn.Conv2d(filters, filters, 3, padding=1, padding_mode="reflect", bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skips = []
        for down, encode in zip(self.down, self.encode, strict=True):
            skips.append(x)
            x = encode(down(x))
        for up, decode in zip(self.up, self.decode, strict=True):
            x = decode(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


@dataclass(frozen=True)
class Entry:
    """How to make a model of some library. `kept` names a class that convert() must not swap."""

    name: str
    library: str = ""
    function: str = ""
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    kept: str = ""

    def __str__(self) -> str:
        return self.name

    def make(self) -> nn.Module:
        """The model with the same random weights every time; skips where there is no library."""
        factory: Callable[..., nn.Module] = self._find() if self.library else UNet
        torch.manual_seed(1)
        return factory(*self.arguments, **self.options)

    def _find(self) -> Callable[..., nn.Module]:
        top = self.library.partition(".")[0]
        try:
            return getattr(importlib.import_module(self.library), self.function)
        except ModuleNotFoundError as error:
            pytest.skip(f"{top} is not installed ({error})")
        except RuntimeError as error:  # built for another torch
            pytest.skip(f"{top} does not work with torch {torch.__version__}: {error}")


def _vision(name: str, function: str, module: str = "torchvision.models", **options: Any) -> Entry:
    return Entry(name, module, function, options={"weights": None, **options})


def _timm(name: str, kept: str = "", **options: Any) -> Entry:
    return Entry(f"timm_{name}", "timm", "create_model", (name,), options, kept)


ZOO = [
    Entry("unet"),
    _vision("resnet50", "resnet50"),
    _vision("resnext50", "resnext50_32x4d"),
    _vision("convnext_tiny", "convnext_tiny"),
    _vision("efficientnet_b0", "efficientnet_b0"),
    _vision("mobilenetv3", "mobilenet_v3_large"),
    _vision("regnety", "regnet_y_400mf"),
    _vision(
        "deeplabv3",
        "deeplabv3_resnet50",
        "torchvision.models.segmentation",
        weights_backbone=None,
        aux_loss=True,
    ),
    # timm's own ways: pointwise layers as convolutions, padding as TensorFlow has it.
    _timm("convnext_atto", conv_mlp=True),
    _timm("tf_efficientnet_b0", kept="Conv2dSame"),
    _timm("regnety_002"),
]


def draw_images(device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(2, 3, 64, 64, generator=generator).to(device, dtype)


def flatten(outputs: Any) -> dict[str, Tensor]:
    """Segmentation models return a dictionary, others a tensor."""
    if isinstance(outputs, Tensor):
        return {"output": outputs}
    return {f"output {name}": value for name, value in outputs.items()}


def run(
    model: nn.Module, x: Tensor, call: Callable[..., Any] | None = None, *, frozen: bool = False
) -> dict[str, Tensor]:
    """One training step without its update: outputs, every gradient, and batch norm's statistics.

    `call` computes in place of the model, whose gradients these are: compiled, or under autocast.
    `frozen` batch norm uses the statistics it has, as in fine-tuning: those of a few values make
    rounding errors a thousand times larger.
    """
    torch.manual_seed(3)  # stochastic depth
    model.train().zero_grad(set_to_none=True)
    for module in model.modules():
        # A dropout's mask falls on other elements in another memory format.
        if isinstance(module, nn.Dropout) or (frozen and isinstance(module, _BatchNorm)):
            module.eval()
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    results = flatten((model if call is None else call)(x))
    loss = torch.zeros((), device=x.device)
    for value in results.values():
        generator = torch.Generator().manual_seed(4)
        direction = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        loss = loss + (value * direction.to(value)).sum()
    loss.backward()
    gradients = {f"grad {name}": p.grad for name, p in model.named_parameters()}
    notes = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    found = {**results, "grad input": x.grad, **gradients, **notes}
    missing = [name for name, value in found.items() if value is None]
    assert not missing, f"no gradient: {missing}"
    return {name: value.detach().clone() for name, value in found.items()}
