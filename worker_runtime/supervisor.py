"""Starts worker processes, restarts those that die, stops them within one deadline, and answers for them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import time
from collections.abc import Sequence

from worker_runtime import exits
from worker_runtime.channel import HELD_BACK, WorkerConfig
from worker_runtime.child import Child, describe_exit
from worker_runtime.fleet import Fleet
from worker_runtime.pausing import pause
from worker_runtime.settings import Settings, SettingsError

#: Seconds that a worker process gets beyond its deadline, or after a force, before it is killed.
GRACE = 2.0
FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0
#: A process that lived this long has earned a fresh backoff, in seconds.
HEALTHY_AFTER = 60.0
#: How long /status waits for a process that does not answer, in seconds.
REFRESH = 0.5
#: Signals within this many seconds of the first are one request: `timeout` and others signal a process and
#: then its group, of which it is a member.
ONE_REQUEST = 0.1

log = logging.getLogger("queueworker.supervisor")


class Supervisor:
    """Runs `settings.processes` worker processes of one app. `given` names the explicit settings."""

    def __init__(self, target: str, settings: Settings, given: Sequence[str]) -> None:
        self._target = target
        self._settings = settings
        self._given = tuple(given)
        self._children: dict[int, Child] = {}
        self._fleet = Fleet(settings.revision, settings.processes, settings.expiry_seconds)
        self._stopping = asyncio.Event()
        self._forcing = asyncio.Event()
        self._may_force = False
        #: A start blocks signals for its duration and then restores the mask, so starts must not overlap.
        self._spawning = asyncio.Lock()
        self._deadline = 0.0
        #: The gravest exit code so far; a fatal one wins over what the stop brings.
        self._fatal: int | None = None
        self._codes: list[int] = []
        self._name = secrets.token_hex(4)

    async def run(self) -> int:
        """Run until a signal or a fatal error. Returns the exit code. Raises SettingsError."""
        loop = asyncio.get_running_loop()
        for number in HELD_BACK:
            loop.add_signal_handler(number, self._on_signal, number)
        admin = None
        if self._settings.admin_port:
            # Only now: a web server is a third of what a supervisor weighs.
            from worker_runtime.admin import start_admin

            admin = await start_admin(
                self._fleet, self._refresh, self._settings.admin_host, self._settings.admin_port
            )
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(self._settings.processes):
                    group.create_task(self._keep(index))
        finally:
            if admin is not None:
                await admin.cleanup()
        return self._exit_code()

    def _exit_code(self) -> int:
        if self._forcing.is_set():
            return exits.FORCED
        if self._fatal is not None:
            return self._fatal
        if exits.LEFT_WORK in self._codes:
            return exits.LEFT_WORK
        return next((code for code in self._codes if code), exits.STOPPED)

    # -- signals -------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._stopping.is_set():
            log.info(
                "%s: stops gracefully within %.0f s; a second signal ends it at once",
                name,
                self._settings.shutdown_seconds,
            )
            self._begin_stop()
        elif self._may_force and not self._forcing.is_set():
            log.warning("%s again: ends at once, unfinished work is left to be recovered", name)
            self._forcing.set()
            for child in self._children.values():
                child.ask_force()

    def _let_force(self) -> None:
        self._may_force = True

    def _begin_stop(self) -> None:
        if self._stopping.is_set():
            return
        self._fleet.stopping = True
        self._deadline = time.monotonic() + self._settings.shutdown_seconds
        self._stopping.set()
        asyncio.get_running_loop().call_later(ONE_REQUEST, self._let_force)
        for child in self._children.values():
            child.ask_stop(self._settings.shutdown_seconds)

    # -- processes -----------------------------------------------------------------------------------

    async def _keep(self, index: int) -> None:
        """Keep one worker process running until the stop."""
        backoff, restarts, last_end = FIRST_BACKOFF, 0, ""
        while not self._stopping.is_set():
            config = WorkerConfig(
                self._target, index, self._settings, self._given, restarts, last_end, f"{self._name}/{index}"
            )
            try:
                async with self._spawning:
                    child = await Child.start(config, lambda report: self._fleet.reported(index, report))
            except OSError as error:
                # No memory, no process or no file to be had: the others work on meanwhile.
                log.error(
                    "worker process %d cannot be started (%s); tries again in %.1f s", index, error, backoff
                )
                await pause(backoff, self._stopping)
                backoff = min(LONGEST_BACKOFF, backoff * 2)
                continue
            born = time.monotonic()
            self._children[index] = child
            self._fleet.started(index, child.pid, restarts)
            if self._stopping.is_set():
                child.ask_stop(max(0.0, self._deadline - time.monotonic()))
            code = await self._outlive(child)
            del self._children[index]
            self._fleet.ended(index)
            # A broker that refuses a newcomer is no reason to end siblings that it serves.
            refused = child.fatal is not None and child.fatal[0] == exits.BROKER
            if child.fatal is not None and not (refused and self._fleet.others_receive(index)):
                if self._fatal is None:
                    self._fatal = child.fatal[0]
                    if self._settings.processes > 1:
                        log.error("worker process %d cannot work; stops all", index)
                self._begin_stop()
                return
            if self._stopping.is_set():
                # Ended by a signal on the way out: whatever it held is recovered by others.
                self._codes.append(exits.LEFT_WORK if code < 0 else code)
                return
            restarts, last_end = restarts + 1, describe_exit(code)
            if time.monotonic() - born > HEALTHY_AFTER:
                backoff = FIRST_BACKOFF
            log.error(
                "worker process %d (pid %d) ended unexpectedly with %s; restarts in %.1f s. What it held is "
                "recovered when its ownership expires.",
                index,
                child.pid,
                last_end,
                backoff,
            )
            await pause(backoff, self._stopping)
            backoff = min(LONGEST_BACKOFF, backoff * 2)

    async def _outlive(self, child: Child) -> int:
        """Wait for its end; kill it when it outstays its deadline or a force."""
        ended = asyncio.create_task(child.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        forcing = asyncio.create_task(self._forcing.wait())
        try:
            await asyncio.wait([ended, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await asyncio.wait(
                    [ended, forcing],
                    timeout=self._deadline + GRACE - time.monotonic(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not ended.done() and self._forcing.is_set():
                await asyncio.wait([ended], timeout=GRACE)
            if not ended.done():
                log.error("worker process pid %d did not end in time and is killed", child.pid)
                child.kill()
            return await ended
        finally:
            stopping.cancel()
            forcing.cancel()

    async def _refresh(self) -> None:
        """Fresh numbers of all processes that answer soon."""
        asks = [asyncio.create_task(child.ask_report()) for child in self._children.values()]
        if asks:
            _, late = await asyncio.wait(asks, timeout=REFRESH)
            for ask in late:
                ask.cancel()


def run_supervisor(target: str, settings: Settings, given: Sequence[str]) -> int:
    """Block until all worker processes have ended. Returns the exit code of `queueworker run`."""

    async def main() -> int:
        try:
            return await Supervisor(target, settings, given).run()
        except SettingsError as error:
            log.error("%s", error)
            return exits.BAD_USAGE

    return asyncio.run(main())
