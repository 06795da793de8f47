"""precision=None follows PyTorch's own switches, in eager mode and when a graph runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import conv2d_ext
from conv2d_ext._precision import torch_allows_tf32


@pytest.fixture(autouse=True)
def restored_settings() -> Iterator[None]:
    """The older switch refuses to speak where convolutions and RNNs differ. And
    `torch.backends.cudnn.enabled` cannot be set once PyTorch's own test utilities are imported, as
    another test file does, so the tests here set the same settings."""

    def set_both(value: str) -> None:
        torch.backends.cudnn.conv.fp32_precision = value
        torch.backends.cudnn.rnn.fp32_precision = value

    saved = torch.backends.cudnn.conv.fp32_precision
    matmul = torch.backends.cuda.matmul.fp32_precision
    set_both("tf32")
    yield
    set_both(saved)
    torch.backends.cuda.matmul.fp32_precision = matmul
    torch._C._set_cudnn_enabled(True)


def test_the_older_switch() -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert torch_allows_tf32()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert not torch_allows_tf32()


def test_the_newer_switch() -> None:
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert torch_allows_tf32()
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    assert not torch_allows_tf32()


def test_pytorchs_default_allows_tf32() -> None:
    """The documented default, in a process where nobody has changed a setting."""
    code = "import conv2d_ext._precision as p; raise SystemExit(not p.torch_allows_tf32())"
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, check=False).returncode == 0


def test_without_cudnn_matrix_products_decide() -> None:
    for setting in ("tf32", "ieee"):
        torch.backends.cuda.matmul.fp32_precision = setting
        for convolutions in ("tf32", "ieee"):
            torch.backends.cudnn.conv.fp32_precision = convolutions
            torch._C._set_cudnn_enabled(False)
            assert torch_allows_tf32() == (setting == "tf32")
            assert torch.ops.convx._torch_allows_tf32() == (setting == "tf32")
            torch._C._set_cudnn_enabled(True)
            assert torch_allows_tf32() == (convolutions == "tf32")


def test_without_cudnn_the_older_switch_of_matrix_products() -> None:
    with torch.backends.cudnn.flags(enabled=False):
        for allowed in (True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            assert torch_allows_tf32() == allowed


def test_the_operator_that_compiled_graphs_ask() -> None:
    for setting in ("tf32", "ieee"):
        torch.backends.cudnn.conv.fp32_precision = setting
        assert torch.ops.convx._torch_allows_tf32() == (setting == "tf32")


def test_compiled_graphs_hold_the_question_not_the_answer() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    x, w = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3)
    torch.compile(lambda x, w: conv2d_ext.conv2d(x, w), backend=keep, fullgraph=True)(x, w)
    (call,) = [node for node in graphs[0].graph.nodes if "conv2d" in str(node.target)]
    assert call.kwargs["precision"] == "torch"


@pytest.mark.parametrize("precision", ["ieee", "tf32", "torch"])
def test_every_value_runs_in_full_precision_on_the_cpu(precision: str) -> None:
    x, w = torch.randn(1, 8, 9, 9), torch.randn(3, 8, 3, 3)
    expected = torch.ops.convx.conv2d(x, w)
    assert torch.equal(torch.ops.convx.conv2d(x, w, precision=precision), expected)
