"""`queueworker up`: reconcile the QueueWorkers of a file against processes on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from watchfiles import awatch

from queueworker_operator.act.ports import Ports
from queueworker_operator.act.processes import Host, ProcessGroup
from queueworker_operator.api.types import QueueWorker, QueueWorkerSpec
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict
from queueworker_operator.run.local_broker import Located, Location, NotLocated, WantsEmbedded, locate
from queueworker_operator.run.local_claims import Claims
from queueworker_operator.run.local_console import Console
from queueworker_operator.run.local_credentials import Credentials
from queueworker_operator.run.local_embedded import EmbeddedBrokers
from queueworker_operator.run.local_file import BadFileError, LocalFile, digest, parse_text, read_text
from queueworker_operator.run.local_leftovers import forget_embedded, leftovers, outlive
from queueworker_operator.run.local_memory import kept_in, remembered
from queueworker_operator.run.local_resource import LocalResource
from queueworker_operator.run.local_state import StateDirectory, StateInUseError
from queueworker_operator.run.local_template import refusal_of
from queueworker_operator.run.local_told import processes_of
from worker_runtime.brokers.base import BrokerError

#: Seconds to the next look when nothing is reported: while workers start, and otherwise.
STARTING, RESYNC = 0.2, 1.0
#: Seconds that the file must stay the same before it is used: an editor may be half way through.
SETTLED = 0.15

DRAINED, BAD_FILE, BROKER_REFUSED, LEFT_WORK, FORCED = 0, 2, 3, 4, 5

_REFUSALS = {
    BrokerVerdict.AUTHENTICATION_FAILED: BROKER_REFUSED,
    BrokerVerdict.UNSAFE_PLACEMENT: BROKER_REFUSED,
    BrokerVerdict.INVALID_URL: BROKER_REFUSED,
    BrokerVerdict.INVALID_CREDENTIALS: BROKER_REFUSED,
    BrokerVerdict.QUEUE_NOT_PROVISIONED: BROKER_REFUSED,
    BrokerVerdict.QUEUE_UNUSABLE: BROKER_REFUSED,
    BrokerVerdict.SECRET_NOT_FOUND: BAD_FILE,
}


class CannotStartError(Exception):
    """Nothing was started. Carries the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Options:
    file: Path
    state_dir: Path
    #: Keep each worker's output in a file of the state directory.
    keep_logs: bool
    #: A URL, "embedded", or None: as the file says.
    broker: str | None
    admin_port_base: int | None


class Local:
    """One run of `queueworker up`."""

    def __init__(self, options: Options, console: Console) -> None:
        self._options, self._console = options, console
        self._state_dir = StateDirectory(options.state_dir)
        self._phase = "running"
        #: Why up.json could not be written the last time; empty when it could.
        self._state_problem = ""
        self._resources: dict[str, LocalResource] = {}
        #: Workers that live on without their resource, by its name.
        self._orphans: dict[str, dict[str, ProcessGroup]] = {}
        #: What an earlier run left in up.json.
        self._before: dict[str, Any] = {}
        self._text: str | None = None
        self._file = LocalFile()
        self._embedded = EmbeddedBrokers(self._say)
        self._credentials = Credentials(options.state_dir)
        self._claims = Claims(options.file, options.state_dir)
        self._wake, self._stop, self._force = asyncio.Event(), asyncio.Event(), asyncio.Event()
        #: Set by a change of the file and by a signal: what is under way makes room for it.
        self._hurry = asyncio.Event()
        self._host = Host(
            cwd=Path.cwd(),
            ports=Ports(options.admin_port_base),
            show=console.show,
            say=console.say,
            wake=self._wake.set,
            log_dir=options.state_dir if options.keep_logs else None,
        )

    async def run(self) -> int:
        """Until a signal, then drain. Returns the exit code.

        Raises CannotStartError, StateInUseError or OSError before anything was started.
        """
        text, file = self._first_file()
        before = self._state_dir.acquire()
        try:
            self._claim(file)
        except StateInUseError:
            self._release()
            raise
        earlier = leftovers(before)
        forget_embedded(before)
        self._before = before
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._told_to_stop)
        background: list[asyncio.Task[None]] = []
        try:
            self._say(
                f"{self._options.file} is brought up; state in {self._options.state_dir}; Ctrl-C drains"
            )
            if earlier:
                self._say(f"{len(earlier)} workers of an earlier run are still stopping; they are waited for")
                background.append(asyncio.create_task(outlive(earlier, self._say)))
            await self._take(text, file)
            self._refuse_bad_brokers()
            background.append(asyncio.create_task(self._watch_file()))
            await self._reconcile()
            return await self._drain()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            for resource in self._resources.values():
                resource.broker.stop()
            self._kill()
            self._embedded.stop()
            self._credentials.remove()
            self._phase = "stopped"
            self._write_state()
            self._release()

    def _release(self) -> None:
        self._claims.release()
        self._state_dir.release()

    # -- the file ----------------------------------------------------------------------------------

    def _first_file(self) -> tuple[str, LocalFile]:
        """The file at the start, where everything in it must be usable. Raises CannotStartError."""
        try:
            text = read_text(self._options.file)
            file = parse_text(self._options.file, text)
        except BadFileError as error:
            raise CannotStartError(BAD_FILE, str(error)) from None
        complaints = [line for document in file.resources.values() for line in document.complaints()]
        for document in file.resources.values():
            if isinstance(document.parsed, QueueWorker):
                refusal = refusal_of(document.parsed, file.secrets, self._host)
                if refusal:
                    complaints.append(f"{document.where}: spec.template: {refusal}")
        if not file.resources:
            complaints.append(f"{self._options.file}: holds no QueueWorker document: add one")
        if complaints:
            raise CannotStartError(BAD_FILE, "\n".join(complaints))
        return text, file

    async def _read_file(self) -> None:
        """Use the file if it differs from what was used last, once it has stood still for a moment."""
        try:
            text = read_text(self._options.file)
            while text != self._text:
                await asyncio.sleep(SETTLED)
                before, text = text, read_text(self._options.file)
                if before == text:
                    break
            if text == self._text:
                return
            file = parse_text(self._options.file, text)
        except BadFileError as error:
            await asyncio.sleep(SETTLED)
            with suppress(BadFileError):
                parse_text(self._options.file, read_text(self._options.file))
                self._wake.set()  # it was only half written
                return
            self._text = None
            self._complain({line for r in self._resources.values() for line in r.refuse("", str(error))})
        else:
            await self._take(text, file)
        self._write_state()  # a pass may take a while from here

    async def _take(self, text: str, file: LocalFile) -> None:
        self._text = text
        if file.left_out and file.left_out != self._file.left_out:
            self._say(f"left out, since local mode reads QueueWorker and Secret: {', '.join(file.left_out)}")
        self._file = file
        complaints: list[str] = []
        try:
            self._claim(file)
        except StateInUseError as error:
            complaints.append(str(error))
        for name, resource in self._resources.items():
            if name not in file.resources:
                resource.delete()
        for name, document in file.resources.items():
            resource = self._resources.get(name) or self._new(name)
            if resource.deleting:
                resource.reconsider(document)
                continue  # it comes back as a new one when the old one is gone
            self._resources[name] = resource
            complaints += resource.ask(document, file.secrets)
            await self._locate_broker(resource)
        self._complain(set(complaints))

    def _new(self, name: str) -> LocalResource:
        """One that was not there, in this run or since it was deleted."""
        earlier, kept = remembered(self._before, name), kept_in(self._before, name)
        resources = self._before.get("resources")
        if isinstance(resources, dict):  # somebody may have written into the file
            resources.pop(name, None)
        return LocalResource(name, self._host, _now, earlier, self._orphans.pop(name, None), kept)

    def _complain(self, lines: set[str]) -> None:
        for line in sorted(lines):
            self._say(line)

    async def _watch_file(self) -> None:
        """Wake the loop when the file changes; the resync finds what this misses."""
        name = self._options.file.name
        with suppress(OSError, RuntimeError):
            async for _ in awatch(
                self._options.file.parent,
                watch_filter=lambda _, path: Path(path).name == name,
                recursive=False,
                debounce=100,
                step=20,
            ):
                self._wake.set()
                self._hurry.set()

    # -- brokers -----------------------------------------------------------------------------------

    def _claim(self, file: LocalFile) -> None:
        """Have what is on the brokers of others to ourselves. Raises StateInUseError."""
        for document in file.resources.values():
            if isinstance(document.parsed, QueueWorker):
                found = locate(document.parsed.spec, file.secrets, self._options.broker)
                if isinstance(found, Located):
                    self._claims.take(found.url)

    async def _locate_broker(self, resource: LocalResource) -> None:
        accepted = resource.accepted
        if accepted is None:
            return
        if (former := resource.served_before) is not None:
            place = await self._settle(former, resource)
            if isinstance(place, Located):
                resource.knows(former.broker, place)
        await resource.use_broker(await self._settle(accepted.spec, resource))

    async def _settle(self, spec: QueueWorkerSpec, resource: LocalResource) -> Location:
        """Where the broker of `spec` is. A wish for one of our own is fulfilled, unless the resource lives
        elsewhere already and never had one here: nothing that runs is moved to an empty broker because a
        Secret has left the file."""
        found = locate(spec, self._file.secrets, self._options.broker)
        if isinstance(found, Located):
            return self._credentials.kept(resource.name, found)
        if not isinstance(found, WantsEmbedded):
            return found
        before = resource.found(spec.broker) or resource.location
        if before is not None and not (isinstance(before, Located) and before.embedded):
            path, ref = spec.broker.path, spec.broker.secret_ref
            return NotLocated(
                f"The Secret {ref.name if ref else ''} of {path}.secretRef is not in the file: put it there, "
                f"or give the broker's URL by {path.removeprefix('spec.')}.url."
            )
        try:
            return Located(await self._embedded.url_for(spec), embedded=True)
        except BrokerError as error:
            raise CannotStartError(BROKER_REFUSED, str(error)) from None

    def _refuse_bad_brokers(self) -> None:
        """Raises CannotStartError for a broker that will not serve until somebody changes something."""
        for resource in self._resources.values():
            check = resource.broker.answer
            if isinstance(check, BrokerCheck) and check.verdict in _REFUSALS:
                raise CannotStartError(_REFUSALS[check.verdict], f"{resource.name}: {check.message}")

    # -- the loop ----------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        async with aiohttp.ClientSession() as session:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    await self._pass(session)
                except Exception as error:  # workers must outlive whatever goes wrong here
                    self._say(f"a pass failed and is tried again: {type(error).__name__}: {error}")
                    await asyncio.sleep(RESYNC)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), STARTING if self._starting() else RESYNC)
                await asyncio.sleep(0.02)  # what changes together is looked at together

    async def _pass(self, session: aiohttp.ClientSession) -> None:
        self._embedded.keep()
        self._hurry.clear()
        await self._read_file()
        for name, resource in list(self._resources.items()):
            await self._step(resource, session)
            if resource.gone:
                del self._resources[name]
                if resource.orphans:
                    self._orphans[name] = self._orphans.get(name, {}) | resource.orphans
                self._text = self._text if name not in self._file.resources else None
        self._write_state()

    async def _step(self, resource: LocalResource, session: aiohttp.ClientSession) -> None:
        """One pass of a resource. A broker or a worker that does not answer may hold it up for seconds; a
        change of the file and a signal do not wait for that, since every step of it may be repeated."""
        others = self._resources.values()
        shared = frozenset[str]().union(*(one.works_beside(resource) for one in others))
        step = asyncio.ensure_future(resource.step(session, shared))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((step, hurry), return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                step.result()
        finally:
            for task in (step, hurry):
                task.cancel()
            await asyncio.gather(step, hurry, return_exceptions=True)

    def _starting(self) -> bool:
        groups = [group for r in self._resources.values() for group in r.groups.values()]
        return any(w.pid and not w.ready and not w.stopping for group in groups for w in group.workers)

    # -- the end -----------------------------------------------------------------------------------

    def _told_to_stop(self) -> None:
        if self._stop.is_set():
            self._force.set()
        self._stop.set()
        self._wake.set()
        self._hurry.set()

    async def _drain(self) -> int:
        self._phase = "stopping"
        before = self._left_work()
        orphans = [group for groups in self._orphans.values() for group in groups.values()]
        number = sum(len(resource.processes()) for resource in self._resources.values())
        number += len(processes_of(orphans))
        self._say(f"stopping: {number} workers finish what they have; a second Ctrl-C kills them")
        for group in orphans:
            group.scale(0)
        draining = asyncio.gather(
            *(resource.drain() for resource in self._resources.values()),
            *(group.ended() for group in orphans),
        )
        while not draining.done():
            self._write_state()
            if self._force.is_set():
                self._kill()
            await asyncio.wait({draining}, timeout=0.1)
        await draining
        if self._force.is_set():
            self._say("killed; what was in work is recovered by other workers")
            return FORCED
        if self._left_work() > before:
            self._say("stopped; some workers left work behind, which others recover")
            return LEFT_WORK
        self._say("stopped; everything was drained")
        return DRAINED

    def _kill(self) -> None:
        for resource in self._resources.values():
            resource.kill()
        for groups in self._orphans.values():
            for group in groups.values():
                group.kill()

    def _left_work(self) -> int:
        orphans = (group.left_work for groups in self._orphans.values() for group in groups.values())
        return sum(resource.all_left_work for resource in self._resources.values()) + sum(orphans)

    def _write_state(self) -> None:
        resources = {name: resource.to_state() for name, resource in self._resources.items()}
        state = {
            "pid": os.getpid(),
            "state": self._phase,
            "file": str(self._options.file),
            "file_digest": digest(self._text) if self._text is not None else "",
            "broker_url": _first_url(resources),
            "embedded_directories": [] if self._phase == "stopped" else self._embedded.directories(),
            "resources": resources,
            "orphans": {name: processes_of(groups.values()) for name, groups in self._orphans.items()},
        }
        try:
            self._state_dir.write(state)
        except OSError as error:  # nothing that runs may suffer from a full disk
            if self._state_problem != str(error):
                self._say(f"up.json cannot be written and is out of date: {error}")
            self._state_problem = str(error)
        else:
            self._state_problem = ""

    def _say(self, text: str) -> None:
        self._console.say("up", text)


def _first_url(resources: Mapping[str, Mapping[str, Any]]) -> str:
    return next((str(resource["broker_url"]) for resource in resources.values()), "")


def _now() -> datetime:
    return datetime.now(UTC)
