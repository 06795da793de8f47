"""The error for problems that only the person at the keyboard can fix."""

from __future__ import annotations


class UserError(ValueError):
    """Its message is a whole sentence, which the command line prints without a traceback."""
