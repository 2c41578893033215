"""As the first process of a container, where the kernel drops a signal that nobody handles."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.fixtures import wait_until

NAMESPACE = ["unshare", "--fork", "--pid", "--kill-child"]
#: Stands for imports that take long: says that they began, then waits.
SLOW_CLICK = "import pathlib, time\npathlib.Path({sign!r}).touch()\ntime.sleep(120)\n"


def test_a_sigterm_while_the_command_still_loads_ends_it(tmp_path: Path) -> None:
    if subprocess.run([*NAMESPACE, "true"]).returncode:
        pytest.skip("this machine gives no process namespace of its own")
    sign = tmp_path / "loading"
    (tmp_path / "click.py").write_text(SLOW_CLICK.format(sign=str(sign)))
    command = [*NAMESPACE, sys.executable, "-m", "worker_runtime.cli.main"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as outer:
        try:
            wait_until(sign.exists, "the command to begin to load")
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            assert len(children) == 1
            os.kill(int(children[0]), signal.SIGTERM)
            assert outer.wait(120) == 128 + signal.SIGTERM
        finally:
            outer.kill()
