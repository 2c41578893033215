"""Running other programs: one place for environment, timeouts and readable failures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.failure import SetupError

TAIL_LINES = 25


def run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `command` with captured text output. `environment` adds to this process's; `timeout` in seconds.

    Raises SetupError, with the command, its exit code and the end of its output, when it fails and `check`
    is set; and always when it takes longer than `timeout` or the program is missing.
    """
    arguments = [str(part) for part in command]
    try:
        result = subprocess.run(
            arguments,
            env={**os.environ, **(environment or {})},
            cwd=directory,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise SetupError(
            f"{arguments[0]}: not found; see `python -m e2e doctor` for how to get it"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"`{shorten(arguments)}` did not end within {timeout:.0f} s") from error
    if check and result.returncode != 0:
        output = (result.stdout + result.stderr).strip().splitlines()[-TAIL_LINES:]
        raise SetupError(f"`{shorten(arguments)}` ended with code {result.returncode}:\n" + "\n".join(output))
    return result


def shorten(arguments: Sequence[str], limit: int = 200) -> str:
    """The command as one line of at most `limit` characters."""
    text = " ".join(arguments)
    return text if len(text) <= limit else text[: limit - 3] + "..."
