"""explain: which engine a convolution gets, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._arguments import IntOrPair, PaddingLike, parse_padding, parse_pair
from ._precision import torch_allows_tf32


@dataclass(frozen=True)
class Candidate:
    """One engine's answer: a refusal, or what it expects the problem to cost."""

    name: str
    refusal: str = ""
    by_name_only: bool = False  # runs only where algorithm= asks for it
    predicted_us: float = 0.0
    workspace_bytes: int = 0
    split: int = 1
    tile: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """How a convolution would be computed. Prints as a table."""

    problem: str
    direction: str
    precision: str
    engine: str
    flops: float
    bytes: float
    candidates: tuple[Candidate, ...]
    error: str = ""

    def __str__(self) -> str:
        lines = [
            f"{self.problem}, {self.direction}, {self.precision}",
            f"{self.flops / 1e9:.4g} GFLOP, at least {self.bytes / 1e6:.4g} MB moved",
        ]
        width = max((len(c.name) for c in self.candidates), default=0)
        for c in self.candidates:
            mark = "->" if c.name == self.engine else "  "
            if c.refusal:
                lines.append(f"{mark} {c.name:{width}}  refuses: {c.refusal}")
            else:
                lines.append(
                    f"{mark} {c.name:{width}}  predicted {_time_text(c.predicted_us)}, "
                    f"workspace {c.workspace_bytes / 2**20:.1f} MiB"
                    + (", only by name" if c.by_name_only else "")
                )
        if self.error:
            lines.append(f"error: {self.error}")
        elif self.engine:
            lines.append(f"{self.engine} runs it: {self._why()}")
        return "\n".join(lines)

    def _why(self) -> str:
        chosen = next(c for c in self.candidates if c.name == self.engine)
        able = [c for c in self.candidates if not c.refusal and not c.by_name_only]
        if chosen.by_name_only or any(c.predicted_us < chosen.predicted_us for c in able):
            return "algorithm= asked for it"
        return "the smallest predicted time" if len(able) > 1 else "no other engine can"


def _time_text(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3f} ms" if microseconds >= 1e3 else f"{microseconds:.1f} us"


def explain(
    input: Tensor | Sequence[int],
    weight: Tensor | Sequence[int],
    bias: object = None,
    stride: IntOrPair = 1,
    padding: PaddingLike = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    *,
    precision: str | None = None,
    algorithm: str = "auto",
    direction: str = "forward",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    channels_last: bool = False,
) -> Explanation:
    """Say which engine a convolution gets, without computing it.

    Takes the arguments of :func:`conv2d_ext.conv2d`; input and weight may also be given by their
    sizes, then with ``dtype`` (default float32), ``device`` (default "cpu") and ``channels_last``.
    ``direction`` is "forward", "input_grad" or "weight_grad".
    """
    x = _as_tensor(input, dtype, channels_last)
    w = _as_tensor(weight, dtype, channels_last)
    where = torch.device(device or (input.device if isinstance(input, Tensor) else "cpu"))
    if x.dim() == 3:
        x = x.unsqueeze(0)
    stride_hw = parse_pair("stride", stride)
    dilation_hw = parse_pair("dilation", dilation)
    kernel = (w.shape[-2], w.shape[-1]) if w.dim() >= 2 else (1, 1)
    pad = parse_padding(padding, kernel, stride_hw, dilation_hw)
    if precision is None:
        precision = "tf32" if where.type == "cuda" and torch_allows_tf32() else "ieee"
    arguments = (
        direction,
        str(x.dtype).removeprefix("torch."),
        list(x.shape),
        list(x.stride()),
        list(w.shape),
        list(w.stride()),
        bias is not None,
        list(stride_hw),
        list(pad),
        list(dilation_hw),
        groups,
        precision,
        algorithm,
    )
    answer = json.loads(_explainer(where)(*arguments, where.index or 0))
    candidates = tuple(
        Candidate(**{**row, "tile": tuple(row.get("tile", ()))}) for row in answer["candidates"]
    )
    return Explanation(**{**answer, "candidates": candidates})


def _as_tensor(
    operand: Tensor | Sequence[int], dtype: torch.dtype | None, channels_last: bool
) -> Tensor:
    if isinstance(operand, Tensor):
        return operand
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(
        tuple(operand),
        dtype=dtype or torch.float32,
        device="meta",
        memory_format=memory_format,
    )


def _explainer(device: torch.device) -> torch._ops.OpOverload:
    if device.type == "cpu":
        return torch.ops.convx._explain_cpu.default
    if device.type == "cuda" and hasattr(torch.ops.convx, "_explain_cuda"):
        return torch.ops.convx._explain_cuda.default
    raise RuntimeError(f"convx.explain: no engines are loaded for device='{device}'")
