"""The words that precision=, algorithm= and policy= take, checked before anything is changed."""

from __future__ import annotations

import json
import math
from functools import cache

import torch

from . import _ops  # noqa: F401  (defines the operators)
from ._checks import ACTIVATIONS
from ._precision import PRECISION_ARGUMENTS
from ._values import shown

# The convolutions that convert() and compile_backend() give to convx.
POLICIES = ("all", "faster")


def check_choices(where: str, precision: object, algorithm: object) -> None:
    """ValueError for a word that no call would take; a call itself makes the same checks."""
    is_known = isinstance(precision, str) and precision in PRECISION_ARGUMENTS
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


def check_fusion(where: str, activation: object, negative_slope: object) -> None:
    """The same for the words of a fused epilogue."""
    if activation is not None and activation not in ACTIVATIONS:
        names = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(
            f"{where}: activation must be None or one of {names}, "
            f"but got activation={shown(activation)}"
        )
    if not isinstance(negative_slope, int | float) or not math.isfinite(negative_slope):
        raise ValueError(
            f"{where}: negative_slope must be a finite number, "
            f"but got negative_slope={shown(negative_slope)}"
        )


def check_policy(where: str, policy: object) -> None:
    if policy not in POLICIES:
        raise ValueError(
            f"{where}: policy must be 'all' or 'faster', but got policy={shown(policy)}"
        )


@cache
def engine_names(*kinds: str) -> tuple[str, ...]:
    """The engines of the loaded libraries, also without a GPU; by default "cpu" and "cuda"."""
    ops = (f"_engines_{kind}" for kind in kinds or ("cpu", "cuda"))
    loaded = (getattr(torch.ops.convx, op) for op in ops if hasattr(torch.ops.convx, op))
    return tuple(name for names in loaded for name in json.loads(names()))


def _is_known(engine: str) -> bool:
    if engine == "auto" or engine in engine_names():
        return True
    # A model may be built where the CUDA half is missing, and run where it is not.
    return engine.startswith("cuda_") and not hasattr(torch.ops.convx, "_engines_cuda")
