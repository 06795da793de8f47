"""Ctrl-C and SIGTERM: a command saves its results so far before it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, which unwinds a command as Ctrl-C does."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within the block SIGTERM raises Terminated."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    with _handlers({signal.SIGTERM: terminate}):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores Ctrl-C and SIGTERM within the block, which should be short, such as writing files."""
    with _handlers({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield


@contextmanager
def saving(save: Callable[[], object]) -> Iterator[None]:
    """Calls save() if the block is interrupted or fails, before the exception goes on."""
    try:
        yield
    except BaseException:
        with uninterrupted():
            save()
        raise


@contextmanager
def _handlers(wanted: dict[signal.Signals, Any]) -> Iterator[None]:
    """Sets handlers of signals within the block. Python lets only the main thread set handlers, and
    other threads receive no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: installed outside Python, which cannot be put back
                signal.signal(number, handler)
