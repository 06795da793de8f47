"""torch.ao.quantization.fuse_modules, for models with convx's layers in them.

PyTorch looks fusions up by the exact classes of the modules, and quantizes no class but its own. So
a layer becomes PyTorch's, for which it stands, before it is fused.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from ._after_import import after_import
from ._swap import OURS, restore_layers


def _fuse_as_pytorch(fuse: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def fuse_plain(is_qat: bool, conv: nn.Module, *others: nn.Module) -> nn.Module:
        restore_layers(conv, native=True)
        return fuse(is_qat, conv, *others)

    return fuse_plain


def _register(mappings: ModuleType) -> None:
    known: dict[Any, Any] = getattr(mappings, "_DEFAULT_OP_LIST_TO_FUSER_METHOD", {})
    for classes, fuse in [*known.items()]:
        if classes[0] in OURS:
            ours = (OURS[classes[0]], *classes[1:])
            known[ours] = _fuse_as_pytorch(fuse)


after_import("torch.ao.quantization.fuser_method_mappings", _register)
