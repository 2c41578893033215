"""Real `queueworker` processes for tests: start one, read its log and status, end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.services import free_port

#: An upper bound for every wait; nothing is timed, so a busy machine only makes a test slower.
PATIENCE = 120.0
#: Flags for workers whose work, or place on the list, others have to take over soon after a kill. All other
#: tests keep the long expiry of `environment`: a worker that gets no turn for a while is not dead. It is long
#: enough for a machine that stands still for a second or two: nothing of the living is taken over then.
EXPIRES_SOON = ("--expiry-seconds", "4")


def wait_until(happened: Callable[[], Any], what: str, timeout: float = PATIENCE) -> Any:
    """Poll until it is true and return its value."""
    deadline = time.monotonic() + timeout
    while not (value := happened()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout:.0f} s")
        time.sleep(0.02)
    return value


def gone(pid: int) -> bool:
    """Ended, whether or not whoever inherited it has read its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def environment(url: str, namespace: str, **extra: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("QUEUEWORKER_")}
    return clean | {
        "QUEUEWORKER_BROKER_URL": url,
        "QUEUEWORKER_NAMESPACE": namespace,
        "QUEUEWORKER_EXPIRY_SECONDS": "60",
        "QUEUEWORKER_BLOCK_SECONDS": "0.5",
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


def queueworker(*arguments: str, env: dict[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "worker_runtime.cli.main", *arguments],
        env=env,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class RunningWorker:
    """`queueworker run jobs:app` in its own process group, with the app's source in `directory`."""

    def __init__(
        self,
        directory: Path,
        source: str,
        env: dict[str, str],
        *flags: str,
        admin: bool = True,
        python: str = sys.executable,
    ):
        (directory / "jobs.py").write_text(textwrap.dedent(source))
        self.directory = directory
        self.port = free_port() if admin else 0
        # A link to Python outside of the virtual environment does not know its packages.
        extra = [] if python == sys.executable else [path for path in sys.path if "site-packages" in path]
        port = ["--admin-port", str(self.port), "--admin-host", "127.0.0.1"] if admin else []
        self.process = subprocess.Popen(
            [python, "-m", "worker_runtime.cli.main", "run", "jobs:app", *port, *flags],
            cwd=directory,
            env=env | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *extra])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"level": "raw", "msg": line.rstrip()})

    def said(self, part: str, **fields: Any) -> list[dict[str, Any]]:
        """Log lines that hold this text and these fields."""
        return [
            line
            for line in list(self.lines)
            if part in line["msg"] and all(line.get(key) == value for key, value in fields.items())
        ]

    def wait_for(self, part: str, count: int = 1) -> dict[str, Any]:
        """The first log line with this text, once there are `count` of them."""

        def seen() -> list[dict[str, Any]] | None:
            lines = self.said(part)
            if len(lines) < count and self.process.poll() is not None:
                self._reader.join(5)
                lines = self.said(part)
                assert len(lines) >= count, f"it ended without saying {part!r}: {self.transcript()}"
            return lines if len(lines) >= count else None

        try:
            found: list[dict[str, Any]] = wait_until(seen, f"the log line {part!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said: {self.transcript()}") from None
        return found[0]

    def consuming(self) -> RunningWorker:
        """Wait until every process receives."""
        wait_until(lambda: self.get("/readyz")[0] == 200 or self.process.poll() is not None, "readiness")
        assert self.process.poll() is None, self.transcript()
        return self

    def warned(self) -> list[str]:
        """Its warnings, but for those of a machine that gave it no turn."""
        slow = ("stood still", "runs again after a stall")
        return [
            line["msg"]
            for line in list(self.lines)
            if line["level"] == "warning" and not any(part in line["msg"] for part in slow)
        ]

    def transcript(self) -> str:
        return "\n".join(line["msg"] for line in self.lines)

    def get(self, path: str) -> tuple[int, str]:
        """Status code and body; 0 while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait_for_counts(self, queue: str = "q", **counts: int) -> dict[str, Any]:
        """The numbers of a queue in /status, once these are among them: a report may be late, and the first
        one is not there as soon as the worker is."""
        last: dict[str, Any] = {}

        def shown() -> bool:
            code, body = self.get("/status")
            last.update(json.loads(body)["queues"].get(queue, {}) if code == 200 else {})
            return counts.items() <= last.items()

        try:
            wait_until(shown, f"{counts} in /status")
        except AssertionError as error:
            raise AssertionError(f"{error}, but {last}") from None
        return last

    def status(self) -> dict[str, Any]:
        code, body = self.get("/status")
        assert code == 200, body
        status: dict[str, Any] = json.loads(body)
        return status

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def stop(self) -> int:
        self.signal()
        return self.ended()

    def kill_group(self) -> None:
        """SIGKILL for the supervisor and all its processes at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.ended()

    def wrote(self, name: str = "ran") -> list[str]:
        """Lines that handlers appended to a file of their working directory."""
        file = self.directory / name
        return file.read_text().split() if file.exists() else []
