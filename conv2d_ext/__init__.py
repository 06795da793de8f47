"""convx: 2-D convolution for PyTorch."""

from . import _fake, _autograd, _autocast, _vmap, _flops
from .functional import conv2d
