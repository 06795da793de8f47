"""Output files that are complete or not there: written under a temporary name, then renamed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: Path, binary: bool = False) -> Iterator[IO[Any]]:
    """Opens a temporary file in the folder of `path`, and renames it to `path` at the end.

    If the block raises, the temporary file is removed and an earlier file stays. A new file
    gets the permissions that the umask asks for, an existing one keeps its own. The target of a
    symbolic link is replaced, not the link. Devices and pipes, such as /dev/stdout, cannot be
    replaced: they are written to directly.
    """
    path = Path(os.path.realpath(path))
    text: dict[str, Any] = {} if binary else {"encoding": "utf-8", "newline": ""}
    if path.exists() and not path.is_file():
        with path.open("wb" if binary else "w", **text) as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb" if binary else "w", **text) as file:
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, document: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write(json.dumps(document, indent=1) + "\n")


def append_line(path: Path, line: str) -> None:
    """Adds a line of text to a file. Another process that adds one meanwhile waits."""
    with locked(path):
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        if before and not before.endswith("\n"):
            before += "\n"
        with replacing(path) as file:
            file.write(f"{before}{line}\n")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time is in such a block for files of the same folder.

    The lock is on the folder, because the file itself is replaced, and so that no lock file stays
    behind. File systems without locks, some network ones, run the block unlocked.
    """
    folder = Path(os.path.realpath(path)).parent
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_to_write(path: Path) -> None:
    """Raises the OSError that writing to `path` would raise, and leaves nothing behind."""
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if path.exists() and not path.is_file():
        return
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    probe = _temporary_name(folder / path.name)
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    probe.unlink()


def incomplete_name(path: Path) -> Path:
    """The name for an unfinished `path`: rows.json becomes rows.incomplete.json, or, where an
    earlier interrupt left that, rows.incomplete-2.json and so on. Devices keep their name."""
    if path.exists() and not path.is_file():
        return path
    name = path.with_name(f"{path.stem}.incomplete{path.suffix}")
    number = 1
    while name.exists():
        number += 1
        name = path.with_name(f"{path.stem}.incomplete-{number}{path.suffix}")
    return name


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
