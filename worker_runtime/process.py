"""One worker process: `python -m worker_runtime.process FD`, started by the supervisor.

The main thread runs the handlers. The background thread renews, reports, listens to the supervisor and
enforces the deadline of a stop, so that each of these works while a handler blocks the main loop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from worker_runtime import exits, logs
from worker_runtime.app import App
from worker_runtime.background import Background
from worker_runtime.binding import RegistrationError
from worker_runtime.brokers.base import (
    Broker,
    BrokerError,
    BrokerRefusedError,
    Delivery,
    UnsafePlacementError,
    WorkerIdentity,
)
from worker_runtime.channel import HELD_BACK, WorkerConfig, WorkerEnd
from worker_runtime.execution import describe
from worker_runtime.hooks import HookKind
from worker_runtime.job import Job
from worker_runtime.loading import AppImportError, load_app
from worker_runtime.reaching import reach
from worker_runtime.renewal import Heartbeat, Renewal
from worker_runtime.settings import SettingsError
from worker_runtime.state import QueueState
from worker_runtime.surprises import named
from worker_runtime.worker import Worker

log = logging.getLogger("queueworker.process")


class FatalError(Exception):
    """The process cannot work and a restart would not help. Carries the exit code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class WorkerProcess:
    """From the configuration to the exit code."""

    def __init__(self, config: WorkerConfig, end: WorkerEnd) -> None:
        self._config = config
        self._settings = config.settings
        host = socket.gethostname().replace(" ", "-")
        self.identity = WorkerIdentity(
            self._settings.revision,
            f"{host}-{os.getpid()}-{secrets.token_hex(4)}",
            host,
            config.restarts,
            config.last_end,
            config.place,
        )
        self._end = end
        self._loop = _fast_loop()
        self._background = Background("queueworker background")
        self._stop_asked = asyncio.Event()
        self._phase = "starting"
        self._display_url = ""
        self._starting_problem = ""
        self._states: list[QueueState] = []
        self._heartbeat = Heartbeat(lambda: self._states, self._loop.call_soon_threadsafe)
        self._deadline: asyncio.TimerHandle | None = None
        #: Monotonic time by which this process has to be gone.
        self._gone_by = 0.0
        #: Why a loop of the runtime was given up; the process ends and another takes its place.
        self._fault = ""

    def run(self) -> int:
        """Work until asked to stop. Returns the exit code, or ends the process at once when forced."""
        self._background.start()
        serving = self._background.keep(
            lambda: self._end.serve(self._report, self._stop, self._force, self._settings.expiry_seconds),
            "the line to the supervisor",
            self._give_up,
        )
        self._loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        try:
            app = self._load()
            code = self._loop.run_until_complete(self._main(app))
        except FatalError as error:
            log.error("%s", error)
            code, why = error.code, str(error)
            self._say_last(lambda: self._end.fatal(code, why))
        except Exception as error:
            log.error("the worker process failed: %s", describe(error), exc_info=error)
            code = exits.FAULT
        if self._fault and code in (exits.STOPPED, exits.LEFT_WORK):
            code = exits.FAULT
        self._say_last(lambda: self._end.last_report(self._report() | {"exit": code}))
        serving.cancel()
        self._background.stop()
        return code

    def _say_last(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Tell the supervisor, if it can be told: the exit code says it, too."""
        try:
            self._background.submit(make()).result(5)
        except TimeoutError:
            pass  # the supervisor does not read any more
        except Exception as error:
            log.error("the supervisor cannot be told how this process ends: %s", describe(error))

    # -- asked from outside, on the background thread ------------------------------------------------

    def _on_sigterm(self) -> None:
        self._background.loop.call_soon_threadsafe(self._stop, None)

    def _give_up(self, why: str) -> None:
        """A loop of the runtime cannot go on: end in order, rather than to look alive and do nothing."""
        log.error("%s; this worker process ends", why)
        self._fault = why
        self._stop(None)

    def _stop(self, seconds: float | None) -> None:
        """Begin a graceful stop, once. Its deadline holds even if the main loop never turns again."""
        if self._deadline is not None:
            return
        allowed = self._settings.shutdown_seconds if seconds is None else seconds
        self._gone_by = time.monotonic() + allowed
        self._deadline = self._background.loop.call_later(allowed, self._expire, allowed)
        self._phase = "stopping"
        self._loop.call_soon_threadsafe(self._stop_asked.set)

    def _expire(self, allowed: float) -> None:
        held = sum(len(state.outstanding) for state in self._states)
        running = [
            f"{state.job_name} ({delivery.pid})" for state in self._states for delivery in state.running_now()
        ]
        deferred = sum(len(state.deferred) for state in self._states)
        log.error(
            "the deadline of %.1f s passed with %d messages outstanding, left to be recovered; running: %s; "
            "handled and not confirmed by the job: %d; ids: %s",
            allowed,
            held,
            ", ".join(running) or "none",
            deferred,
            self._held_ids(),
        )
        self._leave(exits.FAULT if self._fault else exits.LEFT_WORK)

    def _force(self) -> None:
        held = sum(len(state.outstanding) for state in self._states)
        log.error(
            "forced to end at once with %d messages outstanding, left to be recovered; ids: %s",
            held,
            self._held_ids(),
        )
        self._leave(exits.FORCED)

    def _held_ids(self) -> str:
        return named([delivery.pid for state in self._states for delivery in state.held()])

    def seconds_left(self) -> float:
        """Until the deadline of the stop."""
        return max(0.0, self._gone_by - time.monotonic())

    def _leave(self, code: int) -> None:
        for handler in logging.getLogger().handlers:
            handler.flush()
        os._exit(code)

    def _report(self) -> dict[str, Any]:
        states = list(self._states)
        problem = ""
        if self._phase == "starting":
            problem = self._starting_problem or "starting"
        elif self._phase == "stopping":
            problem = "stopping"
        else:
            lost = [f"queue {state.queue}: {state.problem}" for state in states if state.problem]
            problem = lost[0] if lost else ""
        return {
            "phase": self._phase,
            "problem": problem,
            "broker": self._display_url,
            "receiving": self._phase == "receiving"
            and all(not state.problem and not state.fence for state in states),
            "cpu_seconds": _cpu_seconds(),
            "queues": {state.queue: state.report() for state in states},
        }

    # -- the main thread -----------------------------------------------------------------------------

    def _load(self) -> App:
        try:
            return load_app(self._config.target)
        except AppImportError as error:
            raise FatalError(exits.BAD_USAGE, str(error)) from error
        except RegistrationError as error:
            raise FatalError(exits.FAULT, str(error)) from error

    async def _main(self, app: App) -> int:
        self._background.keep(self._heartbeat.watch, "the watch over the event loop", self._give_up)
        try:
            app.apply(self._settings, self._config.given)
            jobs = app.selected_jobs(self._settings)
            broker = app.make_broker()
        except SettingsError as error:
            raise FatalError(exits.BAD_USAGE, str(error)) from error
        except BrokerError as error:
            raise FatalError(exits.BAD_USAGE, str(error)) from error
        self._display_url = broker.display_url
        try:
            reached = await reach(broker, [job.queue for job in jobs], self._stop_asked, self._note_problem)
        except (BrokerRefusedError, UnsafePlacementError) as error:
            raise FatalError(exits.BROKER, str(error)) from error
        if not reached:
            return exits.STOPPED
        try:
            return await self._consume(app, jobs, broker)
        except RegistrationError as error:
            raise FatalError(exits.FAULT, str(error)) from error

    def _note_problem(self, problem: str) -> None:
        self._starting_problem = problem

    async def _consume(self, app: App, jobs: list[Job], broker: Broker) -> int:
        groups = {group for job in jobs for group in job.groups}
        hooks = [hook for hook in app.hooks if hook.covers(groups)]
        for hook in hooks:
            if hook.kind is HookKind.WORKER_START:
                try:
                    await hook.run(app.resources)
                except Exception as error:
                    log.error("start hook failed", exc_info=error)
                    raise FatalError(
                        exits.FAULT, f"The start hook {hook.name} raised {type(error).__name__}: {error}"
                    ) from error
        consumers, renewals = [], []
        workers: list[Worker] = []
        for job in jobs:
            timing = broker.timing(job.queue)
            state = QueueState(
                job.queue, job.name, job.coroutines, job.prefetch, timing.expiry, block=timing.block
            )
            consumer = broker.consumer(job.queue, self.identity, max_tries=job.max_tries)

            def on_lost(lost: list[Delivery], index: int = len(workers)) -> None:
                self._loop.call_soon_threadsafe(lambda: workers[index].superseded(lost))

            renewer = broker.renewer(state.queue, self.identity, max_takeovers=job.max_takeovers)
            renewal = Renewal(state, renewer, timing, self._give_up, on_lost)
            await self._background.call(renewal.start())

            async def verify(renewal: Renewal = renewal) -> bool:
                return await self._background.call(renewal.verify())

            workers.append(Worker(job, state, consumer, verify, app.hooks, app.resources))
            consumers.append(consumer)
            renewals.append(renewal)
            self._states.append(state)
            log.info(
                "consumes with %d coroutines and prefetch %d",
                job.coroutines,
                job.prefetch,
                extra={"queue": job.queue},
            )
        # What is imported by now stays for ever; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        if self._phase == "starting":
            self._phase = "receiving"
        code = await self._work(workers)
        for hook in hooks:
            if hook.kind is HookKind.WORKER_STOP:
                try:
                    await hook.run(app.resources)
                except Exception as error:
                    log.error("stop hook %s failed: %s", hook.name, error, exc_info=error)
        try:
            await app.close()
        except BrokerError as error:
            log.error("%s", error)
        for renewal in renewals:
            await self._background.call(renewal.stop())
        for consumer in consumers:
            await consumer.close()
        log.info("stopped")
        return code

    async def _work(self, workers: list[Worker]) -> int:
        """Run all until a stop or a fault of the runtime; then drain. Returns the exit code."""
        runs = [asyncio.create_task(worker.run(), name=f"worker {worker.job.queue}") for worker in workers]
        stop = asyncio.create_task(self._stop_asked.wait(), name="stop")
        await asyncio.wait([stop, *runs], return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():  # a fault; the others end in order, within a deadline
            self._background.loop.call_soon_threadsafe(self._stop, None)
        unknown = sum(state.unknown for state in self._states)
        began = time.monotonic()
        log.info("stops: receives nothing more, finishes what runs")
        for worker in workers:
            worker.stop()
        results = await asyncio.gather(*runs, return_exceptions=True)
        stop.cancel()
        code = exits.STOPPED
        if sum(state.unknown for state in self._states) > unknown:
            log.error("the broker did not confirm every settlement; what it did not apply is recovered later")
            code = exits.LEFT_WORK
        for worker, result in zip(workers, results, strict=True):
            if isinstance(result, BaseException):
                log.error(
                    "consuming failed: %s: %s",
                    type(result).__name__,
                    result,
                    exc_info=result,
                    extra={"queue": worker.job.queue},
                )
                code = exits.FAULT
        log.debug("drained in %.2f s", time.monotonic() - began)
        return code


def _cpu_seconds() -> float:
    """User and system time of this process, all its threads, and its own children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _fast_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed; it halves what a wake-up costs."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def main() -> None:
    # Ctrl-C reaches the whole process group; only the supervisor acts on it.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)  # programs that a handler starts have no business with it
    end = WorkerEnd(line)
    try:
        config = end.read_config()
    except EOFError:
        sys.exit(exits.LEFT_WORK)
    process = WorkerProcess(config, end)
    settings = config.settings
    logs.configure(settings.log_format, settings.log_level, settings.revision, process.identity.worker)
    code = process.run()
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stdout.flush()
    if code == exits.STOPPED:
        # Threads of the user may finish, but not beyond the deadline, also when no supervisor is left.
        limit = threading.Timer(process.seconds_left(), os._exit, [code])
        limit.daemon = True
        limit.start()
        sys.exit(code)
    os._exit(code)  # a thread of a plain handler may still run and must not hold the exit up


if __name__ == "__main__":
    main()
