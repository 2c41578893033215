"""`python -m worker_runtime.chaos.nursery`: a process without threads that has everything imported and forks
workers on demand, which takes milliseconds where a new interpreter takes a second.

One request a line on standard input, one answer a line on standard output:
`work REVISION NAME SEED` -> process id · `run REVISION NAME` -> process id of a supervisor, leader of its
own group · `reap PID` -> the wait status of one that was told to end. It waits for no child unasked, so a
process id stays the child's own until it is reaped. When standard input ends, all that is left is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback

from worker_runtime.chaos.plan import Plan
from worker_runtime.chaos.worker import work

#: The plan, for every process of a run.
PLAN = "QUEUEWORKER_CHAOS_PLAN"
#: What a supervised worker calls itself in the record.
SUPERVISED = "QUEUEWORKER_CHAOS_NAME"
_PR_SET_PDEATHSIG = 1


def main() -> None:
    plan = Plan.decode(os.environ[PLAN])
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
    # Ctrl-C reaches the whole group; the run ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker that is told to cut its connections before it can has none.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    living: set[int] = set()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "reap":
            living.discard(int(words[0]))
            answer = os.waitpid(int(words[0]), 0)[1]
        else:
            answer = os.fork()
            if answer == 0:
                if prctl is not None:
                    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                _become(verb, words, plan)
            living.add(answer)
        print(answer, flush=True)
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _become(verb: str, words: list[str], plan: Plan) -> None:
    """In the child. Never returns."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        log = os.open(plan.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for theirs, ours in ((nothing, 0), (nothing, 1), (log, 2)):
            os.dup2(theirs, ours)
        if verb == "run":
            revision, name = words
            os.setsid()
            for number in (signal.SIGINT, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            command = [
                sys.executable,
                "-m",
                "worker_runtime.cli.main",
                "run",
                "worker_runtime.chaos.jobs:app",
            ]
            options = ["--revision", revision, "--log-level", "warning"]
            os.execve(sys.executable, [*command, *options], os.environ | {SUPERVISED: name})
        revision, name, seed = words
        asyncio.run(work(plan, revision, name, int(seed)))
        code = 0
    except BaseException:
        print(f"worker {words} ended by itself", file=sys.stderr)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
