"""convx: 2-D convolution for PyTorch, fast on what its users run by default: NCHW and float32.

>>> import torch, conv2d_ext
>>> y = torch.ops.convx.conv2d(x, w, b, stride=(1, 2), padding=(2, 4), dilation=(2, 3))
>>> y = conv2d_ext.conv2d(x, w, padding="same")
>>> conv2d_ext.convert(model)
"""

# The order matters: the operators exist once _ops has loaded the libraries.
from . import _ops  # isort: skip
from . import (
    _autocast,
    _autograd,
    _fake,
    _flops,
    _fused,
    _onnx,
    _precision,
    _quantization,
    _sharding,
    _transposed,
    _vmap,
)
from ._version import __version__
from .compile import compile_backend, compile_pass
from .convert import ConvertReport, convert, restore
from .explain import Explanation, explain
from .functional import conv1d, conv2d, conv_transpose2d
from .modules import Conv1d, Conv2d, ConvTranspose2d, LazyConv2d
from .settings import set_cuda_workspace_limit
from .tuning import TuneReport, clear_tuned, load_tuned, save_tuned, set_autotune, tune

__all__ = [
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "ConvertReport",
    "Explanation",
    "LazyConv2d",
    "TuneReport",
    "__version__",
    "clear_tuned",
    "compile_backend",
    "compile_pass",
    "conv1d",
    "conv2d",
    "conv_transpose2d",
    "convert",
    "explain",
    "load_tuned",
    "restore",
    "save_tuned",
    "set_autotune",
    "set_cuda_workspace_limit",
    "tune",
]
