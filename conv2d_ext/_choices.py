"""The words that precision= and algorithm= take, checked where a layer is made."""

from __future__ import annotations

import json
from functools import cache

import torch

from . import _ops  # noqa: F401  (defines the operators)
from ._checks import PRECISIONS
from ._values import shown


def check_choices(where: str, precision: object, algorithm: object) -> None:
    """ValueError for a word that no call would take; a call itself makes the same checks."""
    is_known = isinstance(precision, str) and precision in PRECISIONS
    if precision is not None and not is_known:
        raise ValueError(
            f"{where}: precision must be None, 'ieee', 'tf32' or 'torch', "
            f"but got precision={shown(precision)}"
        )
    if not isinstance(algorithm, str) or not _is_known(algorithm.partition(":")[0]):
        names = ", ".join(f"'{name}'" for name in ("auto", *engine_names()))
        raise ValueError(
            f"{where}: algorithm must be one of {names}, or 'engine:variant', "
            f"but got algorithm={shown(algorithm)}"
        )


@cache
def engine_names() -> tuple[str, ...]:
    """The engines of every library that is loaded, also where its device is missing."""
    names: list[str] = json.loads(torch.ops.convx._engines_cpu())
    if hasattr(torch.ops.convx, "_engines_cuda"):
        names += json.loads(torch.ops.convx._engines_cuda())
    return tuple(names)


def _is_known(engine: str) -> bool:
    if engine == "auto" or engine in engine_names():
        return True
    # A model may be built where the CUDA half is missing, and run where it is not.
    return engine.startswith("cuda_") and not hasattr(torch.ops.convx, "_engines_cuda")
