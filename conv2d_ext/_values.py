"""Values on their way in and out: short texts of arguments for messages, and fields out of JSON."""

from __future__ import annotations

import reprlib
from typing import Any

from torch import Tensor


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = 8
        self.maxstring = self.maxother = 80

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, Tensor):
            return f"Tensor of size {list(x.shape)}"
        if type(x).__name__ == "ndarray":
            return f"ndarray of shape {list(x.shape)}"
        if isinstance(x, list | tuple) and len(x) > self.maxlist:
            shown = ", ".join(self.repr1(item, level - 1) for item in x[: self.maxlist])
            return f"[{shown}, ... ({len(x)} values)]"
        return super().repr1(x, level)


_short = _Short()


def shown(value: object) -> str:
    """The value's repr; of a tensor its size, of a long list its first values and its length."""
    return _short.repr(value)


def tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a frozen dataclass out of JSON, whose lists would not be hashable."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
