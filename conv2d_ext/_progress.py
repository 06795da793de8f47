"""The progress of long commands, on standard error.

On a terminal it is one line that rich draws, or tqdm, or this module where neither is installed.
Elsewhere it is a plain line for each step that is done.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol


class _Bar(Protocol):
    def begin(self, done: int, label: str) -> None: ...
    def advance(self, done: int, label: str) -> None: ...
    def close(self) -> None: ...


class Progress:
    """Counts steps of a known number.

    >>> with Progress(len(cases)) as progress:
    ...     for case in cases:
    ...         with progress.step(str(case)):
    ...             measure(case)
    """

    def __init__(self, total: int, shown: bool = True) -> None:
        self.total = total
        self.done = 0
        self._shown = shown
        self._bar: _Bar | None = None

    def __enter__(self) -> Progress:
        if self._shown and self.total:
            self._bar = _make_bar(self.total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.close()

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """The block is one step; it counts as done unless it raises."""
        if self._bar:
            self._bar.begin(self.done, label)
        yield
        self.done += 1
        if self._bar:
            self._bar.advance(self.done, label)


def _make_bar(total: int) -> _Bar:
    if not sys.stderr.isatty():
        return _Lines(total)
    for make in (_RichBar, _TqdmBar):
        try:
            return make(total)
        except ImportError:
            continue
    return _PlainBar(total)


class _Lines:
    """A line per step without control characters, for pipes and log files."""

    def __init__(self, total: int) -> None:
        self.total = total

    def begin(self, done: int, label: str) -> None:
        pass

    def advance(self, done: int, label: str) -> None:
        print(f"[{done}/{self.total}] {label}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _RichBar:
    """The label takes the rest of the terminal's width, and is cut off there."""

    def __init__(self, total: int) -> None:
        rich = import_module("rich.progress")
        column = import_module("rich.table").Column
        console = import_module("rich.console").Console(stderr=True)
        label = column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress: Any = rich.Progress(
            rich.BarColumn(bar_width=20),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            rich.TextColumn("{task.description}", markup=False, table_column=label),
            console=console,
            expand=True,
            auto_refresh=False,  # no second thread while something is being timed
        )
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def begin(self, done: int, label: str) -> None:
        self._progress.update(self._task, description=label, refresh=True)

    def advance(self, done: int, label: str) -> None:
        self._progress.update(self._task, completed=done, refresh=True)

    def close(self) -> None:
        self._progress.stop()


class _TqdmBar:
    def __init__(self, total: int) -> None:
        tqdm = import_module("tqdm").tqdm
        self._bar: Any = tqdm(total=total, dynamic_ncols=True, mininterval=0, file=sys.stderr)

    def begin(self, done: int, label: str) -> None:
        self._bar.set_postfix_str(label)

    def advance(self, done: int, label: str) -> None:
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _PlainBar:
    def __init__(self, total: int) -> None:
        self.total = total

    def begin(self, done: int, label: str) -> None:
        columns = shutil.get_terminal_size().columns
        filled = 20 * done // self.total
        line = f"[{'#' * filled}{'.' * (20 - filled)}] {done}/{self.total} {label}"
        # A character in the last column would move some terminals to the next line.
        sys.stderr.write("\r" + line[: columns - 1].ljust(columns - 1))
        sys.stderr.flush()

    def advance(self, done: int, label: str) -> None:
        self.begin(done, label)

    def close(self) -> None:
        sys.stderr.write("\n")
        sys.stderr.flush()
