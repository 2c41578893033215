"""Which broker the workers of a resource use in local mode, and whether it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from queueworker_operator.api.revisions import broker_identity
from queueworker_operator.api.types import Broker, QueueWorkerSpec
from queueworker_operator.observe.brokers import observe_broker
from queueworker_operator.observe.priority import since
from queueworker_operator.observe.provisioning import Source
from queueworker_operator.observe.secrets import files_in
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict, Unknown

#: The word for --broker that asks for an embedded one.
EMBEDDED = "embedded"
#: Seconds between two checks of a broker that answers, and of one that does not.
CALM, ANXIOUS = 4.0, 1.0


@dataclass(frozen=True, slots=True)
class Located:
    """The broker was found."""

    url: str
    embedded: bool = False
    #: By --broker, and not by the file.
    by_flag: bool = False
    #: What the URL is used with, until it is on disk and part of the URL.
    files: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class WantsEmbedded:
    """Nothing says where the broker is: one of our own is used, of the kind that the spec names."""


@dataclass(frozen=True, slots=True)
class NotLocated:
    """The file says where the broker's URL is kept, and it is not there."""

    message: str


Location = Located | WantsEmbedded | NotLocated


def locate(spec: QueueWorkerSpec, secrets: Mapping[str, Mapping[str, str]], choice: str | None) -> Location:
    """`choice` is --broker and wins; then the URL in the spec; then the Secret in the file; else our own."""
    if choice == EMBEDDED:
        return WantsEmbedded()
    if choice is not None:
        return Located(choice, by_flag=True)
    broker = spec.broker
    if broker.url is not None:
        return _with_files(broker.url, broker, secrets)
    ref = broker.secret_ref
    if ref is None or ref.name not in secrets:
        return WantsEmbedded()
    url = secrets[ref.name].get(ref.key, "").strip()
    if url:
        return _with_files(url, broker, secrets)
    keys = ", ".join(sorted(secrets[ref.name])) or "no keys"
    return NotLocated(
        f"Secret {ref.name} in the file has no value under {ref.key} (read {keys}): "
        f"add the broker's URL there, or correct {broker.path}.secretRef."
    )


def _with_files(url: str, broker: Broker, secrets: Mapping[str, Mapping[str, str]]) -> Located | NotLocated:
    files = files_in(secrets, broker.nats.files() if broker.nats else ())
    return NotLocated(files) if isinstance(files, str) else Located(url, files=files)


class BrokerWatch:
    """Checks the broker of one resource now and then, and keeps the last answer."""

    def __init__(self, clock: Callable[[], datetime], wake: Callable[[], None]) -> None:
        self._clock, self._wake = clock, wake
        self._asked: tuple[QueueWorkerSpec, Location] | None = None
        self._task: asyncio.Task[None] | None = None
        #: Looks often, since a change is under way that rests on what is seen.
        self.closely = False
        self.answer: BrokerCheck | Unknown = Unknown("the broker has not been checked yet", clock())

    async def ask(self, spec: QueueWorkerSpec, location: Location) -> None:
        """Watch the broker of this spec. The first check of another broker is done on return."""
        before = self._asked
        self._asked = (spec, location)
        if before and before[1] == location and before[0].broker == spec.broker:
            return
        self.stop()
        self.answer = await self._check()
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        if self._task:
            self._task.cancel()
            self._task = None

    async def _watch(self) -> None:
        while True:
            good = isinstance(self.answer, BrokerCheck) and self.answer.verdict is BrokerVerdict.REACHABLE
            await asyncio.sleep(CALM if good and not self.closely else ANXIOUS)
            before, self.answer = self.answer, _after(self.answer, await self._check())
            if _verdict(before) != _verdict(self.answer):
                self._wake()

    async def _check(self) -> BrokerCheck | Unknown:
        assert self._asked is not None
        spec, location = self._asked
        match location:
            case Located(url=url, embedded=embedded, by_flag=by_flag):
                source = Source(url if by_flag else "", embedded)
                return await observe_broker(url, spec, self._clock(), source=source)
            case NotLocated(message):
                identity = broker_identity(spec.broker)
                return BrokerCheck(BrokerVerdict.SECRET_NOT_FOUND, message, self._clock(), identity)
            case WantsEmbedded():
                return Unknown("the embedded broker has not started yet", self._clock())


def _after(before: BrokerCheck | Unknown, found: BrokerCheck | Unknown) -> BrokerCheck | Unknown:
    if isinstance(before, BrokerCheck) and isinstance(found, BrokerCheck):
        return replace(found, priority=since(before.priority, found.priority))
    return found


def _verdict(answer: BrokerCheck | Unknown) -> object:
    return answer.verdict if isinstance(answer, BrokerCheck) else None
