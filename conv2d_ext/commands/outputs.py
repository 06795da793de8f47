"""The files that commands write: checked before the work, marked if the work was interrupted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._files import incomplete_name, try_to_write
from .._user_error import UserError


def check_outputs(*paths: Path | None) -> None:
    """UserError unless every file can be written, each to a place of its own."""
    seen: set[str] = set()
    for path in paths:
        if path is None:
            continue
        place = os.path.realpath(path)
        if place in seen and (not path.exists() or path.is_file()):
            raise UserError(f"{path} is given for two outputs")
        seen.add(place)
        try:
            try_to_write(path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error


def check_replaceable(path: Path | None, key: str, command: str) -> None:
    """UserError if a file exists that the command did not write: all of its files have `key`."""
    _check_origin(path, command, lambda text: _is_object(text) and key in json.loads(text))


def check_appendable(path: Path | None, command: str) -> None:
    """UserError if a file exists that is not made of JSON objects, one per line."""
    _check_origin(path, command, lambda text: all(map(_is_object, text.splitlines())))


def _is_object(line: str) -> bool:
    return isinstance(json.loads(line), dict)


def _check_origin(path: Path | None, command: str, is_own: Callable[[str], bool]) -> None:
    if path is None or not path.is_file() or path.stat().st_size == 0:
        return
    try:
        if is_own(path.read_text(encoding="utf-8")):
            return
    except (OSError, ValueError):
        pass
    raise UserError(f"{path} exists and is not a file of `convx {command}`; it is left alone")


class Incomplete:
    """Saves the results of an interrupted command, and reports their number and place on standard
    error."""

    def __init__(self, done: int, total: int, unit: str) -> None:
        self.done, self.total, self.unit = done, total, unit

    @property
    def mark(self) -> dict[str, Any]:
        """The fields that an incomplete file has besides its results."""
        return {"incomplete": True, "done": self.done, "total": self.total}

    def save(self, path: Path, write: Callable[[Path], None]) -> None:
        """Writes to a file of its own beside `path`."""
        name = incomplete_name(path)
        write(name)
        self.say(f"saved in {name}, marked as incomplete")

    def say(self, more: str = "") -> None:
        if self.done:
            counted = f"{self.done} of {self.total} {self.unit} done"
            print(f"stopped: {counted}{', ' + more if more else ''}", file=sys.stderr)


def save_incomplete(
    incomplete: Incomplete,
    paths: Sequence[Path | None],
    write: Callable[[Incomplete], None],
    show: Callable[[], object],
) -> None:
    """Saves and shows the results of an interrupted command, if it has any.

    Args:
        incomplete: counts the results.
        paths: the files that were asked for; without any, standard error says how much is done.
        write: writes these files.
        show: prints the results.
    """
    if not incomplete.done:
        return
    if not any(paths):
        incomplete.say()
    write(incomplete)
    show()


def save(
    path: Path | None, write: Callable[[Path], None], incomplete: Incomplete | None = None
) -> None:
    """Writes a file if one was asked for, under its own name or that of an incomplete one."""
    if path and incomplete:
        incomplete.save(path, write)
    elif path:
        write(path)
