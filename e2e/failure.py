"""The one exception whose text is meant for the person at the terminal."""

from __future__ import annotations


class SetupError(Exception):
    """Something needed is missing or failed. The text says what, why, and how to get it, in one line."""
