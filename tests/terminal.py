"""Runs a command on a terminal of a given width, and returns the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Sequence


def run_on_terminal(command: Sequence[str], columns: int, env: dict[str, str]) -> str:
    """Standard error is the terminal; the text has its control characters."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env={**plain, "TERM": "xterm", **env},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert process.wait() == 0, shown.decode()
    return shown.decode()


def lines_on_screen(shown: str) -> list[list[str]]:
    """Every line that was begun, as the texts that were written over each other on it."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    return [[piece for piece in line.split("\r") if piece] for line in text.split("\n")]
