"""Which precision float32 convolutions may use, by PyTorch's own settings."""

from __future__ import annotations

import torch

# What torch.backends.cudnn.conv.fp32_precision and torch.backends.cudnn.enabled read, most of a
# microsecond sooner.
_read_setting = torch._C._get_fp32_precision_getter
_is_cudnn_enabled = torch._C._get_cudnn_enabled


def torch_allows_tf32() -> bool:
    """Whether torch.backends lets float32 convolutions round to TF32 on CUDA now.

    PyTorch's default lets them. With `torch.backends.cudnn.enabled = False` PyTorch computes
    convolutions as matrix products, and the setting of those counts: torch.backends.cuda.matmul.
    The newer switches, fp32_precision, also answer for the older ones, allow_tf32.
    """
    return _read_setting("cuda", "conv" if _is_cudnn_enabled() else "matmul") == "tf32"


# Compiled graphs ask when they run, so that a setting changed after compilation still holds.
_library = torch.library.Library("convx", "FRAGMENT")
_library.define("_torch_allows_tf32() -> bool")
_library.impl("_torch_allows_tf32", torch_allows_tf32, "CompositeExplicitAutograd")
