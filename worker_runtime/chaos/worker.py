"""A worker that is cheap enough to be killed many times a second: one forked process with the public parts of
a broker (consumer and renewer), one event loop, and handlers that write down when they start and finish."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import stat

import msgspec

from worker_runtime.brokers.base import (
    Action,
    BrokerUnavailableError,
    Delivery,
    Outcome,
    Presence,
    Settlement,
    WorkerIdentity,
)
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.chaos.plan import TIMING, Plan
from worker_runtime.chaos.record import Record

#: Seconds that a handler takes at most.
_LONGEST = 0.004
#: One delivery of this many is given back instead of handled.
_RELEASED = 25
#: Descriptors that are looked at when the connections are cut.
_DESCRIPTORS = 128


async def work(plan: Plan, revision: str, name: str, seed: int) -> None:
    """Until SIGTERM. SIGUSR1 cuts all of its connections."""
    worker = _Worker(plan, revision, name, random.Random(seed))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_signal_handler(signal.SIGUSR1, cut_connections)
    await worker.run()


def cut_connections() -> None:
    """End every connection of this process, in both directions, behind the back of the code that uses it."""
    for number in range(3, _DESCRIPTORS):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                # The event loop wakes itself through a pair of sockets without names.
                if connection.getpeername():
                    connection.shutdown(socket.SHUT_RDWR)


class _Worker:
    def __init__(self, plan: Plan, revision: str, name: str, chance: random.Random) -> None:
        broker = broker_from_url(plan.url, plan.namespace, TIMING)
        identity = WorkerIdentity(revision, name)
        self._name = name
        self._chance = chance
        self._record = Record(plan.record_path)
        self._consumer = broker.consumer(plan.queue, identity, max_tries=0)
        self._renewer = broker.renewer(plan.queue, identity, max_takeovers=0)
        self._outstanding: dict[int, Delivery] = {}
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self._consumer.interrupt()

    async def run(self) -> None:
        renewing = asyncio.create_task(self._renew())
        try:
            while not self._stopping:
                await self._receive_and_handle()
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(BrokerUnavailableError):
            await self._renewer.sign_off()
        await self._renewer.close()
        await self._consumer.close()

    async def _receive_and_handle(self) -> None:
        try:
            received = await self._consumer.receive(self._chance.randint(1, 20))
        except BrokerUnavailableError:
            await asyncio.sleep(0.02)
            return
        for one in received.deliveries:
            self._outstanding[id(one)] = one
        waiting: list[Settlement] = []
        together = self._chance.randint(1, 8)
        for one in received.deliveries:
            if self._stopping or self._chance.randrange(_RELEASED) == 0:
                waiting.append(Settlement(one, Action.RELEASE))
                continue
            number = number_of(one.payload)
            self._record.started(number, self._name)
            await asyncio.sleep(self._chance.random() * _LONGEST)
            self._record.finished(number, self._name)
            waiting.append(Settlement(one, Action.COMMIT))
            if len(waiting) >= together:
                await self._consumer.settle(waiting, self._note)
                waiting = []
        await self._consumer.settle(waiting, self._note)

    def _note(self, settlement: Settlement, outcome: Outcome, _: str) -> None:
        self._outstanding.pop(id(settlement.delivery), None)
        number = number_of(settlement.delivery.payload)
        word = outcome.value
        if settlement.action is Action.RELEASE and outcome is not Outcome.RELEASED:
            word = f"release-{word}"
        self._record.settled(number, self._name, word)

    async def _renew(self) -> None:
        # The first pass at once: most of these workers do not live for long.
        while True:
            try:
                held = list(self._outstanding.values())
                for lost in await self._renewer.extend(held):
                    self._outstanding.pop(id(lost), None)
                await self._renewer.announce(Presence(not self._stopping, len(held), 1, 20))
                await self._renewer.recover()
                await self._renewer.promote()
            except BrokerUnavailableError:
                pass
            await asyncio.sleep(TIMING.renewal_period * self._chance.random())


def number_of(payload: bytes) -> int:
    """Raises for a payload that no run of this command has published."""
    return int(msgspec.json.decode(payload)["n"])
