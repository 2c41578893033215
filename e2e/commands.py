"""Running other programs: one place for environment, timeouts and readable failures."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from e2e.failure import SetupError

TAIL_LINES = 25
# What a program that is stopped, and what it started, have for their own end before they are killed.
END_SECONDS = 15.0


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

    A signal to this process's group does not reach it. It ends, with all that it started, when this process
    gives up waiting for it.

    Raises SetupError, with the command, its exit code and the end of its output, when it fails and `check`
    is set; and always when it takes longer than `timeout` or the program is missing.
    """
    arguments = [str(part) for part in command]
    try:
        process = subprocess.Popen(
            arguments,
            env={**os.environ, **(environment or {})},
            cwd=directory,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
    except FileNotFoundError as error:
        raise SetupError(
            f"{arguments[0]}: not found; see `python -m e2e doctor` for how to get it"
        ) from error
    with process:
        try:
            output, errors = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired as error:
            end(process.pid, signal.SIGTERM)
            raise SetupError(f"`{shorten(arguments)}` did not end within {timeout:.0f} s") from error
        except BaseException:
            end(process.pid, signal.SIGTERM)
            raise
    result = subprocess.CompletedProcess(arguments, process.returncode, output, errors)
    if check and result.returncode != 0:
        lines = (result.stdout + result.stderr).strip().splitlines()[-TAIL_LINES:]
        raise SetupError(f"`{shorten(arguments)}` ended with code {result.returncode}:\n" + "\n".join(lines))
    return result


def end(leader: int, number: signal.Signals) -> None:
    """Send the signal to a program that leads a group, and wait until nothing of the group is left.

    What it started may end by itself first: the engine makes the node of a `docker run` whose client was
    killed all the same, a moment later, when nobody looks for it any more.
    """
    with suppress(ProcessLookupError):
        os.kill(leader, number)
    deadline = time.monotonic() + END_SECONDS
    while _members(leader):
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
            return
        time.sleep(0.05)


def _members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, IndexError):
            # After the name, which may hold anything, come the state, the parent and the group.
            state, _, its = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if state != "Z" and int(its) == group:
                found.append(int(entry.name))
    return found


def shorten(arguments: Sequence[str], limit: int = 200) -> str:
    """The command as one line of at most `limit` characters."""
    text = " ".join(arguments)
    return text if len(text) <= limit else text[: limit - 3] + "..."
