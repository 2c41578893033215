"""The NATS broker: one address; the namespace stands in the metadata of the streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worker_runtime.brokers.base import (
    MAX_TAKEOVERS,
    BrokerError,
    BrokerUsageError,
    Consumer,
    Fences,
    Inspector,
    Maintenance,
    Publisher,
    QueueUnusableError,
    Renewer,
    Timing,
    WorkerIdentity,
)
from worker_runtime.brokers.nats import topology
from worker_runtime.brokers.nats.address import Address
from worker_runtime.brokers.nats.consumer import NatsConsumer, Terms
from worker_runtime.brokers.nats.fences import NatsFences
from worker_runtime.brokers.nats.inspector import NatsInspector
from worker_runtime.brokers.nats.link import NOBODY, Link
from worker_runtime.brokers.nats.maintenance import NatsMaintenance
from worker_runtime.brokers.nats.names import QueueNames, names_of
from worker_runtime.brokers.nats.publisher import NatsPublisher
from worker_runtime.brokers.nats.renewer import NatsRenewer
from worker_runtime.brokers.nats.survey import PriorityReading, differences, read_priority

#: Older ones delete messages of a replicated work queue that were handed out `max_deliver` times
#: (nats-io/nats-server#7817): consumers of older processes have such a limit.
OLDEST_VERSION = (2, 12, 5)


@dataclass(frozen=True, slots=True)
class Survey:
    """What an operator learns of a queue."""

    #: How the queue differs from what was wanted, one text each.
    differences: tuple[str, ...]
    #: What is left on the priority subject, or why that could not be read.
    priority: PriorityReading | BrokerError


class NatsBroker:
    """Implements `Broker`."""

    def __init__(self, address: Address, namespace: str, timing: Timing) -> None:
        if not namespace:
            raise BrokerUsageError("the namespace is empty; give a name such as utopia-queue")
        self.display_url = address.display_url
        self._address = address
        self._namespace = namespace
        self._timing = timing
        self._terms: dict[str, Terms] = {}

    async def check(self, queue: str) -> None:
        """See `Broker.check`. Changes nothing."""
        names = self._names(queue)
        link = self._link("check")
        try:
            wire = await link.opened()
            if wire.version < OLDEST_VERSION:
                raise QueueUnusableError(
                    f"NATS at {wire.name} is version {wire.info.get('version')}; at least"
                    f" {'.'.join(map(str, OLDEST_VERSION))} is needed"
                )
            if not (wire.info.get("jetstream") or wire.info.get("cluster")):
                await _refuse_without_jetstream(link)
            self._terms_of(queue).lease = await topology.check(link, names, self._timing)
        finally:
            await link.close()

    async def survey(self, queue: str, wanted: Mapping[str, Any]) -> Survey:
        """What `check` verifies, how the queue differs from `wanted` (options of a `Plan`), and what is left
        on its priority subject. Needs no right but to ask. Raises BrokerError as `check`."""
        await self.check(queue)
        names = self._names(queue)
        link = self._link("survey")
        try:
            differ = await differences(link, names, wanted)
            try:
                priority: PriorityReading | BrokerError = await read_priority(link, names)
            except BrokerError as error:
                priority = error
        finally:
            await link.close()
        return Survey(differ, priority)

    def timing(self, queue: str) -> Timing:
        """See `Broker.timing`."""
        lease = self._terms_of(queue).lease
        return (
            self._timing
            if lease is None
            else replace(self._timing, expiry=min(lease.shortest, self._timing.expiry))
        )

    def consumer(self, queue: str, identity: WorkerIdentity, *, max_tries: int = MAX_TAKEOVERS) -> Consumer:
        _check_identity(identity)
        return NatsConsumer(
            self._names(queue),
            identity,
            self._timing,
            self._maker(identity.worker),
            self._terms_of(queue),
            max_tries,
        )

    def renewer(self, queue: str, identity: WorkerIdentity, *, max_takeovers: int = MAX_TAKEOVERS) -> Renewer:
        """`max_takeovers` does not matter here: deliveries are counted where they are received."""
        _check_identity(identity)
        return NatsRenewer(
            self._names(queue),
            identity,
            self.timing(queue),
            self._maker(identity.worker),
            self._terms_of(queue),
        )

    def publisher(self) -> Publisher:
        return NatsPublisher(self._names, self._link("publisher"), self._timing.command_timeout)

    def inspector(self) -> Inspector:
        return NatsInspector(self._names, self._link("inspector"))

    def maintenance(self, *, max_takeovers: int = MAX_TAKEOVERS) -> Maintenance:
        """`max_takeovers` as in `renewer`."""
        return NatsMaintenance(self._names, self._link("maintenance"))

    def fences(self) -> Fences:
        return NatsFences(self._names, self._link("fences"), self._timing.command_timeout)

    async def provision(self, queue: str, plan: topology.Plan, *, update: bool = False) -> Sequence[str]:
        """Make the streams, the consumer and the bucket of a queue; see `topology.provision`."""
        names = self._names(queue)
        link = self._link("provision")
        try:
            return await topology.provision(
                link, names, plan, update=update, patience=self._timing.command_timeout
            )
        finally:
            await link.close()

    def _terms_of(self, queue: str) -> Terms:
        return self._terms.setdefault(queue, Terms())

    def _names(self, queue: str) -> QueueNames:
        return names_of(self._namespace, queue)

    def _link(self, name: str) -> Link:
        return Link(self._address, self._timing.command_timeout, f"queueworker {name}")

    def _maker(self, name: str) -> Callable[[], Link]:
        return lambda: self._link(name)


async def _refuse_without_jetstream(link: Link) -> None:
    """A server that stands alone and has none never will: nobody else answers for it, except where it is a
    leaf of others. Raises QueueUnusableError."""
    if (await link.request("$JS.API.INFO")).status == NOBODY:
        raise QueueUnusableError(
            f"NATS at {link.name} has no JetStream and knows no other server that has: add a jetstream block"
            " to its configuration (or start it with -js), or name a server that has one in the broker URL"
        )


def _check_identity(identity: WorkerIdentity) -> None:
    for name, word in (("revision", identity.revision), ("worker", identity.worker)):
        if not word or any(character.isspace() for character in word):
            raise BrokerUsageError(f"the {name} {word!r} of this worker must be one word without spaces")
