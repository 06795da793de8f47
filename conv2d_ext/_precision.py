"""Precisions: PyTorch's own settings for float32, and the names that commands and reports use."""

from __future__ import annotations

import torch

# The words that conv2d's `precision` and the operators take.
PRECISION_ARGUMENTS = ("ieee", "tf32", "torch")
# Names of a dtype and the rounding of its products, as the option --precision takes them.
PRECISIONS = ("ieee", "tf32", "bf16", "fp16", "fp64")

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# These read torch.backends.cudnn.conv.fp32_precision and torch.backends.cudnn.enabled most of a
# microsecond sooner than the attributes do.
_read_setting = torch._C._get_fp32_precision_getter
_is_cudnn_enabled = torch._C._get_cudnn_enabled


def torch_allows_tf32() -> bool:
    """Whether torch.backends lets float32 convolutions round to TF32 on CUDA now.

    PyTorch's default lets them. With `torch.backends.cudnn.enabled = False` PyTorch computes
    convolutions as matrix products, and the setting of matrix products counts:
    torch.backends.cuda.matmul. The newer switches, fp32_precision, also answer for the older ones,
    allow_tf32.
    """
    return _read_setting("cuda", "conv" if _is_cudnn_enabled() else "matmul") == "tf32"


def default_precision(device: torch.device) -> str:
    """The precision of a float32 call on a device that does not ask for one."""
    return "tf32" if device.type == "cuda" and torch_allows_tf32() else "ieee"


def dtype_of(name: str) -> torch.dtype:
    return _DTYPES.get(name, torch.float32)


def precision_argument(name: str) -> str:
    """The value of conv2d's `precision` for one of PRECISIONS."""
    return "tf32" if name == "tf32" else "ieee"


def precision_name(dtype: torch.dtype, precision: str) -> str:
    """The one of PRECISIONS for a dtype and conv2d's `precision`, "ieee" or "tf32"."""
    return _NAMES.get(dtype, precision)


# Compiled graphs ask when they run, so that a setting changed after compilation still holds.
_library = torch.library.Library("convx", "FRAGMENT")
_library.define("_torch_allows_tf32() -> bool")
_library.impl("_torch_allows_tf32", torch_allows_tf32, "CompositeExplicitAutograd")
