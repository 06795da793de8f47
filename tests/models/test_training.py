"""A short training run: the converted model's loss curve is the original's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from model_zoo import Entry, UNet
from torch import Tensor, nn

import conv2d_ext

STEPS = 12
MOBILENET = Entry(
    "mobilenetv3", "torchvision.models", "mobilenet_v3_small", options={"num_classes": 4}
)


def draw_batch(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Images with a bright square, and which quarter it is in: something that can be learned."""
    generator = torch.Generator().manual_seed(0)
    x = 0.3 * torch.randn(8, 3, 32, 32, generator=generator)
    quarter = torch.arange(8) % 4
    for image, index in zip(x, quarter.tolist(), strict=True):
        top, left = 16 * (index // 2) + 4, 16 * (index % 2) + 4
        image[:, top : top + 8, left : left + 8] += 2
    return x.to(device, dtype), quarter.to(device)


def train(model: nn.Module, device: str, dtype: torch.dtype) -> Tensor:
    """Losses of the steps."""
    torch.manual_seed(0)  # dropout
    model = model.to(device, dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    x, quarter = draw_batch(device, dtype)
    losses = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x), quarter)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def quadrant_net() -> nn.Module:
    """A U-Net whose classes are told from a coarse map, so that position counts."""
    return nn.Sequential(UNet((4, 8), 4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4))


@pytest.mark.parametrize("name", ["unet", "mobilenetv3"])
def test_the_loss_curve_is_the_originals(name: str, device: str) -> None:
    torch.manual_seed(0)
    original = quadrant_net() if name == "unet" else MOBILENET.make()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        exact = train(copy.deepcopy(original), device, torch.float64)
        theirs = train(copy.deepcopy(original), device, torch.float32)
        converted = copy.deepcopy(original)
        assert conv2d_ext.convert(converted, policy="all").swapped
        ours = train(copy.deepcopy(converted), device, torch.float32)
        ours64 = train(converted, device, torch.float64)
    assert exact[-1] < 0.6 * exact[0], "the model must learn something"
    torch.testing.assert_close(ours64, exact, rtol=1e-6, atol=1e-9)
    allowed = 4 * (theirs - exact).abs().max() + 1e-4
    assert (ours - exact).abs().max() <= allowed
