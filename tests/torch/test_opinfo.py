"""PyTorch's own samples and error inputs for nn.functional.conv2d."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import conv2d_ext

invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")
(INFO,) = [info for info in invocations.op_db if info.name == "nn.functional.conv2d"]

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-3},
    torch.float16: {"rtol": 1e-2, "atol": 1e-1},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1.0},
}


def is_for_operator(sample) -> bool:
    """Whether the operator takes it too: it has no unbatched input and no padding by name."""
    return sample.input.dim() == 4 and not isinstance(sample.kwargs.get("padding"), str)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples(dtype, device):
    samples = list(INFO.sample_inputs(device, dtype, requires_grad=True))
    assert len(samples) >= 20
    for sample in samples:
        mine = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor)]
        theirs = [t.detach().double().requires_grad_() for t in mine]
        rest = sample.args[len(mine) - 1 :]
        want = F.conv2d(*theirs, *rest, **sample.kwargs)
        want_grads = torch.autograd.grad(want.sum(), theirs)
        convs = [lambda *a, **k: conv2d_ext.conv2d(*a, **k, precision="ieee")]
        convs += [torch.ops.convx.conv2d] if is_for_operator(sample) else []
        for conv in convs:
            got = conv(*mine, *rest, **sample.kwargs)
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), want, **TOLERANCE[dtype])
            for grad, want_grad in zip(
                torch.autograd.grad(got.sum(), mine), want_grads, strict=True
            ):
                torch.testing.assert_close(grad.double(), want_grad, **TOLERANCE[dtype])


def error_inputs(device: str) -> list:
    return list(INFO.error_inputs(device))


@pytest.mark.parametrize("index", range(len(error_inputs("cpu"))))
def test_error_inputs(index, device):
    error = error_inputs(device)[index]
    sample = error.sample_input
    with pytest.raises(error.error_type, match=r"convx\.conv2d: "):
        conv2d_ext.conv2d(sample.input, *sample.args, **sample.kwargs)
    if is_for_operator(sample):
        with pytest.raises(error.error_type, match=r"convx\.conv2d: "):
            torch.ops.convx.conv2d(sample.input, *sample.args, **sample.kwargs)


def test_there_are_error_inputs():
    assert len(error_inputs("cpu")) >= 8
