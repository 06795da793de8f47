"""DTensor: the ways to split a convolution, each against the whole one in float64."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from processes import run_processes

import conv2d_ext

# name: sizes of x and w, geometry, and for each axis of the mesh where x and w are and where the
# output is expected; "r" is replicated, a digit the axis that is split. All other placements are
# split by batch, also with fewer images than processes.
CASES: dict[str, tuple[Any, ...]] = {
    "replicate": ((4, 3, 7, 8), (8, 3, 3, 3), {}, ["rr->r"]),
    "batch": ((4, 3, 7, 8), (8, 3, 3, 2), {"stride": (1, 2)}, ["0r->0"]),
    "uneven_batch": ((3, 3, 7, 8), (8, 3, 3, 3), {"padding": (1, 0, 2, 1)}, ["0r->0"]),
    "batch_and_sharded_weight": ((8, 3, 9, 9), (8, 3, 3, 3), {}, ["00->0"]),
    "filters": ((2, 3, 7, 8), (8, 3, 3, 3), {"dilation": (2, 1)}, ["r0->1"]),
    "filters_that_do_not_divide": ((2, 3, 7, 8), (6, 3, 3, 3), {}, ["r0->r"]),
    "depthwise": ((2, 8, 7, 8), (8, 1, 3, 3), {"groups": 8, "padding": (1, 1, 1, 1)}, ["10->1"]),
    "depthwise_replicated_weight": ((2, 8, 7, 8), (16, 1, 3, 3), {"groups": 8}, ["1r->1"]),
    "grouped": ((2, 8, 7, 8), (16, 2, 3, 3), {"groups": 4}, ["10->1"]),
    "groups_that_do_not_divide": ((2, 6, 7, 8), (6, 2, 3, 3), {"groups": 3}, ["1r->0"]),
    "input_channels": ((2, 8, 7, 8), (8, 8, 3, 3), {}, ["1r->0"]),
    "rows": ((2, 3, 8, 8), (8, 3, 3, 3), {}, ["2r->0"]),
    "batch_by_filters": ((4, 3, 7, 8), (8, 3, 3, 3), {}, ["0r->0", "r0->1"]),
    "batch_by_groups": ((4, 8, 7, 8), (8, 2, 3, 3), {"groups": 4}, ["0r->0", "10->1"]),
    "groups_by_filters": ((4, 8, 7, 8), (8, 4, 3, 3), {"groups": 2}, ["10->1", "r0->1"]),
    "groups_by_groups": ((4, 8, 7, 8), (8, 2, 3, 3), {"groups": 4}, ["10->1", "10->1"]),
}


def check_all(rank: int) -> None:
    from torch.distributed.tensor import init_device_mesh

    meshes = {1: init_device_mesh("cpu", (4,)), 2: init_device_mesh("cpu", (2, 2))}
    for name, (x_size, w_size, geometry, where) in CASES.items():
        for memory_format in (torch.contiguous_format, torch.channels_last):
            generator = torch.Generator().manual_seed(0)
            sizes = (x_size, w_size, w_size[:1])
            x, w, b = (torch.randn(size, generator=generator) for size in sizes)
            x = x.to(memory_format=memory_format)
            try:
                check_case(x, w, b, geometry, where, meshes[len(where)])
            except Exception as error:
                raise AssertionError(f"{name}, {memory_format}") from error
    check_the_public_operators(meshes[1])
    check_transposed(meshes[1])
    check_errors(meshes)
    check_compiled(meshes[1])


def check_case(x, w, b, geometry, where, mesh) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def place(letters: str) -> list:
        return [Replicate() if letter == "r" else Shard(int(letter)) for letter in letters]

    columns = list(zip(*(row.replace("->", "") for row in where), strict=True))
    starts = (columns[0], columns[1], "r" * mesh.ndim)
    ours = [
        distribute_tensor(tensor, mesh, place(letters)).requires_grad_()
        for tensor, letters in zip((x, w, b), starts, strict=True)
    ]
    y = conv2d_ext.conv2d(*ours, **geometry)
    assert list(y.placements) == place(columns[2]), y.placements
    y.square().sum().backward()

    theirs = [tensor.double().requires_grad_() for tensor in (x, w, b)]
    top, bottom, left, right = geometry.get("padding", (0, 0, 0, 0))
    padded = F.pad(theirs[0], (left, right, top, bottom))
    want = F.conv2d(padded, *theirs[1:], **{**geometry, "padding": 0})
    want.square().sum().backward()

    assert y.stride() == conv2d_ext.conv2d(x, w, b, **geometry).stride()
    close(y.full_tensor(), want)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine.grad.full_tensor(), other.grad)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4 * want.abs().max().item())


def check_the_public_operators(mesh) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    plain = torch.randn(4, 3, 6, 6), torch.randn(8, 3, 3, 3)
    x = distribute_tensor(plain[0], mesh, [Shard(0)])
    w = distribute_tensor(plain[1], mesh, [Replicate()])
    arguments = ([1, 1], [1, 1], [1, 1], 1)
    with torch.inference_mode():
        y = torch.ops.convx.conv2d(x, w, padding=(1, 1))
        assert y.placements == (Shard(0),)
        grads = torch.ops.convx.conv2d_backward(y, x, w, *arguments, [True, True, False])
    plain_y = torch.ops.convx.conv2d(*plain, padding=(1, 1))
    want = torch.ops.convx.conv2d_backward(plain_y, *plain, *arguments, [True, True, False])
    # distribute_tensor sends the first process' values to all.
    if mesh.get_local_rank() == 0:
        torch.testing.assert_close(y.to_local(), plain_y[:1])
    full = [grad.full_tensor() for grad in grads[:2]]
    if mesh.get_local_rank() == 0:
        for got, expected in zip(full, want[:2], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
    assert grads[2] is None


def check_transposed(mesh) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    generator = torch.Generator().manual_seed(0)
    plain = [torch.randn(size, generator=generator) for size in ((4, 8, 5, 6), (8, 3, 3, 3), (3,))]
    numbers = {"stride": 2, "padding": 1, "output_padding": 1}
    want = F.conv_transpose2d(*(tensor.double() for tensor in plain), **numbers)
    for placement in (Shard(0), Shard(1)):  # by images, and by what the sums run over
        x, w, b = (
            distribute_tensor(tensor, mesh, [wanted])
            for tensor, wanted in zip(plain, (placement, Replicate(), Replicate()), strict=True)
        )
        for conv in (conv2d_ext.conv_transpose2d, torch.ops.convx.conv_transpose2d):
            got = conv(x, w, b, **numbers).full_tensor()
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
            # Without a bias: DTensor makes no views in inference mode.
            with torch.inference_mode():
                got = conv(x, w, None, **numbers).full_tensor()
            got = got.double() + plain[2][:, None, None]
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def check_errors(meshes) -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor

    x = distribute_tensor(torch.randn(4, 3, 6, 6), meshes[1], [Replicate()])
    w = torch.randn(8, 3, 3, 3)
    for weight, message in (
        (w, "but weight is a plain tensor of size [8, 3, 3, 3]"),
        (distribute_tensor(w, meshes[2], [Replicate()] * 2), "expected weight to be on the mesh"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(message)):
            conv2d_ext.conv2d(x, weight)


def check_compiled(mesh) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x = distribute_tensor(torch.randn(4, 3, 6, 6), mesh, [Shard(0)])
    w = distribute_tensor(torch.randn(8, 3, 3, 3), mesh, [Replicate()])
    compiled = torch.compile(conv2d_ext.conv2d, backend="aot_eager", fullgraph=True)
    y = compiled(x, w, padding=1)
    assert y.placements == (Shard(0),)
    torch.testing.assert_close(y.to_local(), conv2d_ext.conv2d(x, w, padding=1).to_local())


@pytest.mark.slow
def test_four_processes_agree_with_one() -> None:
    run_processes(check_all, 4)


def test_importing_the_package_does_not_import_dtensor(tmp_path) -> None:
    """Importing it takes a second; the rules are there once somebody has."""
    program = """
import sys, torch, conv2d_ext
assert "torch.distributed.tensor" not in sys.modules
hooks = len(sys.meta_path)
from torch.distributed.tensor import DTensor
assert len(sys.meta_path) == hooks - 1
rules = torch._library.simple_registry.singleton.find("convx::_conv2d").torch_dispatch_rules
assert rules.find(DTensor) is not None
"""
    # Another folder, because Python would import a checkout in the current one first.
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
