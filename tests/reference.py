"""float64 references, and whether a result is close enough to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from cases import Case
from torch import Tensor

from conv2d_ext.bench.accuracy import tolerance


class Gradients(NamedTuple):
    input: Tensor
    weight: Tensor
    bias: Tensor


def exact(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float64)


def conv2d(case: Case, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """F.conv2d in float64 on the CPU, with four-sided padding."""
    x, w = exact(x), exact(w)
    b = None if b is None else exact(b)
    top, bottom, left, right = case.pad4
    padded = F.pad(x, (left, right, top, bottom))
    return F.conv2d(padded, w, b, case.stride, 0, case.dilation, case.groups)


def gradients(case: Case, x: Tensor, w: Tensor, grad_output: Tensor) -> Gradients:
    x = exact(x.detach()).clone().requires_grad_()
    w = exact(w.detach()).clone().requires_grad_()
    b = torch.zeros(w.shape[0], dtype=torch.float64, requires_grad=True)
    return Gradients(*torch.autograd.grad(conv2d(case, x, w, b), (x, w, b), exact(grad_output)))


def conv2d_by_definition(case: Case, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """The sum as the definition has it, one multiplication at a time: for tiny sizes."""
    images, filters, rows, columns = case.y
    top, _, left, _ = case.pad4
    filters_per_group = filters // case.groups
    y = torch.zeros(case.y, dtype=torch.float64)
    for n in range(images):
        for k in range(filters):
            first_channel = k // filters_per_group * case.w[1]
            for p in range(rows):
                for q in range(columns):
                    total = 0.0 if b is None else float(b[k])
                    for c in range(case.w[1]):
                        for r in range(case.w[2]):
                            for s in range(case.w[3]):
                                i = p * case.stride[0] - top + r * case.dilation[0]
                                j = q * case.stride[1] - left + s * case.dilation[1]
                                if 0 <= i < case.x[2] and 0 <= j < case.x[3]:
                                    total += float(w[k, c, r, s]) * float(
                                        x[n, first_channel + c, i, j]
                                    )
                    y[n, k, p, q] = total
    return y


def reduction_length(case: Case, direction: str) -> int:
    """How many products the longest sum of a direction has."""
    images, _, rows, columns = case.y
    return {
        "forward": math.prod(case.w[1:]) + 1,
        "input_grad": case.w[0] // case.groups * case.w[2] * case.w[3],
        "weight_grad": images * rows * columns,
        "bias_grad": images * rows * columns,
    }[direction]


def check(
    got: Tensor,
    want: Tensor,
    magnitude: Tensor,
    length: int,
    what: str,
    *,
    tf32: bool = False,
) -> None:
    """Asserts that `got` has the float64 result's size and, within tolerance, its values."""
    assert got.shape == want.shape, f"{what}: size {tuple(got.shape)}, not {tuple(want.shape)}"
    if got.numel() == 0:
        return
    error = (exact(got) - want).abs()
    allowed = tolerance(want, magnitude, got.dtype, max(length, 1), tf32)
    wrong = ~(error <= allowed)
    if wrong.any():
        worst = int((error / allowed).nan_to_num(math.inf).argmax())
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} elements are wrong; worst at flat "
            f"index {worst}: {got.flatten()[worst].item()}, not {want.flatten()[worst].item()} "
            f"(allowed error {allowed.flatten()[worst].item():.3g})"
        )


def check_forward(
    got: Tensor, case: Case, x: Tensor, w: Tensor, b: Tensor | None, *, tf32: bool = False
) -> None:
    want = conv2d(case, x, w, b)
    magnitude = conv2d(case, x.abs(), w.abs(), None if b is None else b.abs())
    check(got, want, magnitude, reduction_length(case, "forward"), f"{case} forward", tf32=tf32)


def check_gradients(
    got: tuple[Tensor | None, Tensor | None, Tensor | None],
    case: Case,
    x: Tensor,
    w: Tensor,
    grad_output: Tensor,
    *,
    tf32: bool = False,
) -> None:
    """Each of (input, weight, bias) that is not None."""
    want = gradients(case, x, w, grad_output)
    magnitude = gradients(case, x.abs(), w.abs(), grad_output.abs())
    directions = ("input_grad", "weight_grad", "bias_grad")
    for mine, theirs, size, direction in zip(got, want, magnitude, directions, strict=True):
        if mine is not None:
            length = reduction_length(case, direction)
            tf32_sum = tf32 and direction != "bias_grad"
            check(mine, theirs, size, length, f"{case} {direction}", tf32=tf32_sum)


def run_and_check(
    conv: Callable[..., Tensor], case: Case, x: Tensor, w: Tensor, b: Tensor | None
) -> Tensor:
    """Calls `conv`, backpropagates, checks output and gradients; returns the output."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b) if t is not None]
    y = conv(*leaves, *([None] if b is None else []), **case.geometry)
    grad_output = case.grad_output(y.dtype, str(y.device))
    grads = torch.autograd.grad(y, leaves, grad_output)
    check_forward(y.detach(), case, x, w, b)
    check_gradients((*grads, None)[:3], case, x, w, grad_output)  # type: ignore[arg-type]
    return y
