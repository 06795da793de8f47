"""Lists the distinct convolutions of known networks, and writes conv2d_ext/bench/networks.json.

    python .github/scripts/list_layers.py --json conv2d_ext/bench/networks.json
    python .github/scripts/list_layers.py resnet50 edsr

The file is the preset `models` of `convx bench`. Without --json the layers are printed. Each
network runs forward once, on one image and the meta device, which takes no weights, no GPU and no
memory. Most networks come from torchvision, timm and diffusers, which convx does not depend on; the
other ones are defined here.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conv2d_ext.scan import find_convolutions


class DetectorConvolutions(nn.Module):
    """The backbone with its feature pyramid, and the dense head, of a torchvision detector.

    The rest of a detector has no 2-D convolution, but needs values: it resizes images, and selects
    boxes by their scores.
    """

    def __init__(self, detector: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, head

    def forward(self, image: Tensor) -> Any:
        return self.head(list(self.backbone(image).values()))


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015), 64 to 1024 channels, with padded 3x3 layers, so that output
    and input have the same size."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        widths = [64, 128, 256, 512, 1024]
        self.down = nn.ModuleList(map(self._double, [3, *widths], widths))
        upper = list(reversed(widths))
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(c, k, 2, stride=2) for c, k in itertools.pairwise(upper)
        )
        self.up = nn.ModuleList(map(self._double, upper, upper[1:]))
        self.classify = nn.Conv2d(64, classes, 1)

    @staticmethod
    def _double(c: int, k: int) -> nn.Sequential:
        first, second = nn.Conv2d(c, k, 3, padding=1), nn.Conv2d(k, k, 3, padding=1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skipped.append(x)
        skipped.pop()
        for enlarge, block in zip(self.enlarge, self.up, strict=True):
            x = block(torch.cat([skipped.pop(), enlarge(x)], 1))
        return self.classify(x)


class EDSR(nn.Module):
    """EDSR (Lim et al., 2017) as in its paper: 32 residual blocks of 256 channels, scale 2."""

    def __init__(self, blocks: int = 32, width: int = 256) -> None:
        super().__init__()

        def layer(c: int, k: int) -> nn.Conv2d:
            return nn.Conv2d(c, k, 3, padding=1)

        self.head = layer(3, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(layer(width, width), nn.ReLU(), layer(width, width))
            for _ in range(blocks)
        )
        self.body_end = layer(width, width)
        self.enlarge = nn.Sequential(layer(width, 4 * width), nn.PixelShuffle(2))
        self.tail = layer(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = body = self.head(x)
        for block in self.blocks:
            body = body + 0.1 * block(body)
        return self.tail(self.enlarge(x + self.body_end(body)))


class DenseBlock(nn.Module):
    """One of the three dense blocks of an RRDB."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        inputs = [width + i * growth for i in range(5)]
        outputs = [growth] * 4 + [width]
        self.layers = nn.ModuleList(
            nn.Conv2d(c, k, 3, padding=1) for c, k in zip(inputs, outputs, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        known = [x]
        for layer in self.layers:
            y = layer(torch.cat(known, 1))
            known.append(F.leaky_relu(y, 0.2))
        return x + 0.2 * y


class RRDBNet(nn.Module):
    """ESRGAN's generator (Wang et al., 2018): 23 residual-in-residual dense blocks, scale 4."""

    def __init__(self, blocks: int = 23, width: int = 64, growth: int = 32) -> None:
        super().__init__()

        def layer(c: int, k: int) -> nn.Conv2d:
            return nn.Conv2d(c, k, 3, padding=1)

        self.first = layer(3, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(DenseBlock(width, growth) for _ in range(3))) for _ in range(blocks)
        )
        self.body_end = layer(width, width)
        self.enlarge = nn.ModuleList(layer(width, width) for _ in range(2))
        self.last = nn.Sequential(layer(width, width), nn.LeakyReLU(0.2), layer(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = body = self.first(x)
        for block in self.blocks:
            body = body + 0.2 * block(body)
        x = x + self.body_end(body)
        for layer in self.enlarge:
            x = F.leaky_relu(layer(F.interpolate(x, scale_factor=2)), 0.2)
        return self.last(x)


def espcn() -> nn.Module:
    """ESPCN (Shi et al., 2016), scale 3, on the luminance."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 5, padding=2),
        nn.Tanh(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 9, 3, padding=1),
        nn.PixelShuffle(3),
    )


class StableDiffusionUNet(nn.Module):
    """The U-Net of Stable Diffusion 1.5, whose configuration has diffusers' default values but for
    the size of the prompt's embedding."""

    def __init__(self) -> None:
        super().__init__()
        make = importlib.import_module("diffusers").UNet2DConditionModel
        self.unet = make(sample_size=64, cross_attention_dim=768)

    def forward(self, latents: Tensor) -> Any:
        prompt = latents.new_empty(latents.shape[0], 77, 768)
        return self.unet(latents, latents.new_zeros(latents.shape[0]), prompt)


class StableDiffusionDecoder(nn.Module):
    """The decoder of Stable Diffusion 1.5's autoencoder, with the layer before it."""

    def __init__(self) -> None:
        super().__init__()
        widths = [128, 256, 512, 512]
        self.vae = importlib.import_module("diffusers").AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            block_out_channels=widths,
            layers_per_block=2,
            latent_channels=4,
        )

    def forward(self, latents: Tensor) -> Any:
        return self.vae.decode(latents)


def torchvision_model(name: str) -> nn.Module:
    return getattr(importlib.import_module("torchvision.models"), name)()


def torchvision_detector(name: str) -> DetectorConvolutions:
    make = getattr(importlib.import_module("torchvision.models.detection"), name)
    detector = make(weights=None, weights_backbone=None)
    return DetectorConvolutions(
        detector, detector.rpn.head if hasattr(detector, "rpn") else detector.head
    )


def torchvision_segmenter(name: str) -> nn.Module:
    """With the auxiliary head, which the models with published weights have and compute."""
    make = getattr(importlib.import_module("torchvision.models.segmentation"), name)
    return make(weights=None, weights_backbone=None, aux_loss=True)


def timm_model(name: str) -> nn.Module:
    return importlib.import_module("timm").create_model(name, pretrained=False)


@dataclass(frozen=True)
class Network:
    """How to make a network, and the size (C, H, W) of the image or latents that it takes."""

    make: Callable[[], nn.Module]
    input: tuple[int, int, int]
    package: str = "torch"  # the one that defines it; "torch" for networks defined here


def _from(package: str, make: Callable[[str], nn.Module], name: str, *size: int) -> Network:
    channels, height, width = size
    return Network(lambda: make(name), (channels, height, width), package)


# Detectors take images of 800 x 1333, padded to a multiple of 32. Stable Diffusion's latents are
# those of an image of 512 x 512.
NETWORKS: dict[str, Network] = {
    "resnet50": _from("torchvision", torchvision_model, "resnet50", 3, 224, 224),
    "resnext50_32x4d": _from("torchvision", torchvision_model, "resnext50_32x4d", 3, 224, 224),
    "convnext_tiny": _from("timm", timm_model, "convnext_tiny", 3, 224, 224),
    "efficientnet_b0": _from("timm", timm_model, "efficientnet_b0", 3, 224, 224),
    "mobilenet_v2": _from("torchvision", torchvision_model, "mobilenet_v2", 3, 224, 224),
    "mobilenet_v3_large": _from(
        "torchvision", torchvision_model, "mobilenet_v3_large", 3, 224, 224
    ),
    "regnety_016": _from("timm", timm_model, "regnety_016", 3, 224, 224),
    "retinanet_resnet50_fpn": _from(
        "torchvision", torchvision_detector, "retinanet_resnet50_fpn", 3, 800, 1344
    ),
    "fasterrcnn_resnet50_fpn": _from(
        "torchvision", torchvision_detector, "fasterrcnn_resnet50_fpn", 3, 800, 1344
    ),
    "deeplabv3_resnet50": _from(
        "torchvision", torchvision_segmenter, "deeplabv3_resnet50", 3, 520, 520
    ),
    "unet": Network(UNet, (3, 512, 512)),
    "stable_diffusion_unet": Network(StableDiffusionUNet, (4, 64, 64), "diffusers"),
    "stable_diffusion_decoder": Network(StableDiffusionDecoder, (4, 64, 64), "diffusers"),
    "edsr": Network(EDSR, (3, 128, 128)),
    "esrgan": Network(RRDBNet, (3, 128, 128)),
    "espcn": Network(espcn, (1, 256, 256)),
}

# The layers by their shape's text for one image; how often each network computes it.
Layers = dict[str, dict[str, int]]


def list_layers(network: Network) -> dict[str, int]:
    """The distinct convolutions of a forward pass, in the order of their first calls, and how often
    each is computed. Transposed ones are left out."""
    with torch.device("meta"):
        model = network.make().eval()
        calls = find_convolutions(model, torch.empty(1, *network.input))
    counts: dict[str, int] = {}
    for call in (call for call in calls if not call.is_transposed):
        counts[call.shape.text] = counts.get(call.shape.text, 0) + 1
    return counts


def collect(networks: Mapping[str, Network]) -> Layers:
    layers: Layers = {}
    for name, network in networks.items():
        for text, count in list_layers(network).items():
            layers.setdefault(text, {})[name] = count
    return layers


def format_document(networks: Mapping[str, Network], layers: Layers) -> str:
    """JSON with one line for each network and each layer."""
    inputs = {name: "c{}h{}w{}".format(*network.input) for name, network in networks.items()}
    parts = [("inputs", inputs), ("layers", layers)]
    return "{\n" + ",\n".join(_format_part(name, values) for name, values in parts) + "\n}\n"


def _format_part(name: str, values: Mapping[str, Any]) -> str:
    lines = (f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", help=f"some of {', '.join(NETWORKS)}; default: all")
    parser.add_argument("--json", type=Path, help="write the layers to this file")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.networks) - set(NETWORKS):
        parser.error(f"unknown network {', '.join(sorted(unknown))}")
    networks = {name: NETWORKS[name] for name in arguments.networks or NETWORKS}
    text = format_document(networks, collect(networks))
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
