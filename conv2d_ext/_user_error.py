"""The error for what only the person at the keyboard can change."""

from __future__ import annotations


class UserError(ValueError):
    """A whole sentence about what was asked for; the command line prints it without a traceback."""
