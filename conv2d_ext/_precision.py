"""Which precision float32 convolutions may use, by PyTorch's own settings."""

from __future__ import annotations

import torch

# What torch.backends.cudnn.conv.fp32_precision reads, most of a microsecond sooner.
_read_setting = torch._C._get_fp32_precision_getter


def torch_allows_tf32() -> bool:
    """Whether torch.backends lets cuDNN's float32 convolutions round to TF32 now.

    The newer switch, fp32_precision, also answers for the older one, cudnn.allow_tf32.
    """
    return _read_setting("cuda", "conv") == "tf32"


# Compiled graphs ask when they run, so that a setting changed after compilation still holds.
_library = torch.library.Library("convx", "FRAGMENT")
_library.define("_torch_allows_tf32() -> bool")
_library.impl("_torch_allows_tf32", torch_allows_tf32, "CompositeExplicitAutograd")
