"""The three reference workloads as models, reduced, forward and backward."""

from __future__ import annotations

import pytest
import torch
from cases import WORKLOADS, Case
from torch import nn

import conv2d_ext

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Model(nn.Module):
    """The workloads' model: one convolution, nn.Conv2d's or ours."""

    layer: type[nn.Module]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv2d = self.layer(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=bias,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


class TheirModel(Model):
    layer = nn.Conv2d


class OurModel(Model):
    layer = conv2d_ext.Conv2d


def models(case: Case, bias: bool, device: str) -> tuple[nn.Module, nn.Module]:
    arguments = (case.x[1], case.w[0], case.w[2:], case.stride, case.padding, case.dilation)
    ours = OurModel(*arguments, case.groups, bias).to(device)
    theirs = TheirModel(*arguments, case.groups, bias).to(device).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("case", WORKLOADS, ids=str)
def test_forward_and_backward(case, bias, memory_format, compiled, device):
    ours, theirs = models(case, bias, device)
    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    x = torch.rand(case.x, device=device).to(memory_format=memory_format)
    x64 = x.double().requires_grad_()
    x.requires_grad_()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        y = run(x)
        y.mean().backward()
    want = theirs(x64)
    want.mean().backward()

    def close(got, want):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
        scale = want.abs().max()  # gradients of a mean are small: relative to the largest, too
        assert (got.double() - want).abs().max() <= 1e-4 * scale

    close(y, want)
    close(x.grad, x64.grad)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(mine.grad, other.grad)


@pytest.mark.parametrize("case", WORKLOADS, ids=str)
def test_training_follows_nn_conv2d(case, device):
    """Ten steps of SGD end at the same weights."""
    ours, theirs = models(case, True, device)
    for net, dtype in ((ours, torch.float32), (theirs, torch.float64)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(10):
            x = torch.rand(case.x, generator=torch.Generator().manual_seed(step)).to(device, dtype)
            optimizer.zero_grad()
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                net(x).square().mean().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)
