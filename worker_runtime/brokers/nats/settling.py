"""Settling: everything of one call goes out together, each confirmed by the server, each judged alone.

What has to be on the broker before the message may leave the queue (a dead letter, the note of a release)
goes first and is confirmed first. Nothing is sent for a delivery whose ack wait is over, and nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from worker_runtime.brokers.base import Action, BrokerError, OnResult, Outcome, Settlement, WorkerIdentity
from worker_runtime.brokers.nats import api, books
from worker_runtime.brokers.nats.answers import Reply
from worker_runtime.brokers.nats.api import read_pub_ack
from worker_runtime.brokers.nats.dead import DEAD, FAILED, bury
from worker_runtime.brokers.nats.link import FORBIDDEN, NOBODY, Link
from worker_runtime.brokers.nats.names import DURABLE, QueueNames
from worker_runtime.brokers.nats.receipt import Receipt
from worker_runtime.brokers.nats.topology import Lease, read_lease
from worker_runtime.brokers.nats.wire import Request, Wire
from worker_runtime.envelope import encode_envelope

#: `+TERM reason` came with this version; older ones confirm it and do nothing.
_TERM_REASON = (2, 10, 4)
#: Seconds before something is sent again that nobody received.
_PAUSE = 0.1
_LATE = (
    "its ack wait is over, so the server hands it to others; nothing was sent, since that would act on the"
    " next holder's delivery"
)
_GONE = "nobody receives it: the consumer is gone, so the message stays in its stream"
_ANOTHER = (
    "the consumer that handed it out was deleted, and there is another one now; nothing was sent, since that"
    " could act on another message of its number. If the message is still in the stream, it comes again"
)
_SETTLED = "it was settled before"
_DOUBTFUL = (
    "its confirmation came after the ack wait: it may have acted on the next holder's delivery, and somebody"
    " else may have been told that it counts"
)


class Burial(msgspec.Struct, frozen=True):
    """One message that goes to the dead stream."""

    receipt: Receipt
    body: bytes
    place: str
    why: str
    reason: str
    attempts: int


#: Called once with the outcome and why it is not the one asked for.
Done = Callable[[Outcome, str], None]


class _Step(msgspec.Struct):
    """One settlement on its way. `first` has to be confirmed before `answer` is sent."""

    receipt: Receipt
    first: Request | None
    answer: bytes
    outcome: Outcome
    done: Done


class Settling:
    """`lease_of` says what holds at this moment. `link` carries acknowledgements and publishes."""

    def __init__(
        self, link: Link, names: QueueNames, identity: WorkerIdentity, lease_of: Callable[[], Lease]
    ) -> None:
        self._link = link
        self._names = names
        self._identity = identity
        self._lease_of = lease_of
        #: Why the last acknowledgement was refused, and when (monotonic); empty once one is confirmed.
        self.refusal = ""
        self.refused_at = 0.0

    async def settle(self, settlements: Sequence[Settlement], on_result: OnResult) -> None:
        """See `Consumer.settle`."""
        if not settlements:
            return
        try:
            wire = await self._link.opened(self._link.timeout)
        except BrokerError as error:
            for one in settlements:
                on_result(one, Outcome.UNKNOWN, f"it was not settled: {error}")
            return
        commits: list[Settlement] = []
        others: list[Settlement] = []
        released = False
        now, lease = time.monotonic(), self._lease_of()
        made = lease.made
        for one in settlements:
            receipt: Receipt = one.delivery.receipt
            if receipt.settled:
                on_result(one, Outcome.MISSING, _SETTLED)
            elif now >= receipt.deadline:
                receipt.settled = True
                on_result(one, Outcome.SUPERSEDED, _LATE)
            elif receipt.made is not made and receipt.of_another(lease):
                receipt.settled = True
                on_result(one, Outcome.MISSING, _ANOTHER)
            else:
                receipt.settled = True
                if receipt.released:
                    released = True
                if one.action is Action.COMMIT:
                    commits.append(one)
                else:
                    others.append(one)
        finished: list[Receipt] = []
        if released:
            on_result = _noting(finished, on_result)
        if not others:
            await self._commit(commits, on_result)
        else:
            steps = [
                _Step(one.delivery.receipt, None, b"+ACK", Outcome.COMMITTED, _teller(one, on_result))
                for one in commits
            ]
            steps += [self._step(one, wire, _teller(one, on_result)) for one in others]
            await self._run(steps)
        if finished:
            await books.forget_releases(self._link, self._names, finished)

    async def bury(self, burials: Sequence[Burial]) -> int:
        """Put these into the dead stream and take them from the queue. How many surely are there; the others
        come again."""
        buried = 0

        def note(outcome: Outcome, _: str) -> None:
            nonlocal buried
            buried += outcome is Outcome.REJECTED

        wire = await self._link.opened(self._link.timeout)
        steps = []
        for one in burials:
            one.receipt.settled = True
            steps.append(self._burial(one, wire, note))
        await self._run(steps)
        return buried

    async def _commit(self, commits: Sequence[Settlement], on_result: OnResult) -> None:
        """The common case, without a step for each."""
        again: list[Settlement] = []
        soonest = min([one.delivery.receipt.deadline for one in commits], default=0.0)

        def confirmed(indices: list[int]) -> None:
            self.refusal = ""
            now = time.monotonic()
            for index in indices:
                one = commits[index]
                if now < soonest or now < one.delivery.receipt.deadline:
                    on_result(one, Outcome.COMMITTED, "")
                else:
                    on_result(one, Outcome.UNKNOWN, _DOUBTFUL)

        def note(index: int, reply: Reply) -> None:
            if reply.status == NOBODY:
                again.append(commits[index])
            else:
                one = commits[index]
                on_result(one, *self._verdict(Outcome.COMMITTED, one.delivery.receipt, reply))

        try:
            subjects = [one.delivery.receipt.reply for one in commits]
            left: Sequence[int] = await self._link.acknowledge(subjects, confirmed, note)
            why = self._unconfirmed()
        except BrokerError as error:
            left, why = range(len(commits)), f"it was not settled: {error}"
        for index in left:
            on_result(commits[index], Outcome.UNKNOWN, why)
        if again:
            await self._run(
                [
                    _Step(one.delivery.receipt, None, b"+ACK", Outcome.COMMITTED, _teller(one, on_result))
                    for one in again
                ]
            )

    def _step(self, one: Settlement, wire: Wire, done: Done) -> _Step:
        delivery = one.delivery
        receipt: Receipt = delivery.receipt
        most = self._lease_of().max_deliver
        last = 0 < most <= receipt.deliveries
        if one.action is Action.RELEASE:
            if not last:
                return _Step(
                    receipt, books.note_release(self._names, receipt), b"-NAK", Outcome.RELEASED, done
                )
            # The server would not hand it out once more; so it goes back as a message of its own.
            names = self._names
            body = encode_envelope(delivery.pid, names.queue, int(delivery.timestamp), delivery.payload)
            if delivery.attempts:
                body = b'%b,"attempts":%d}' % (body[:-1], delivery.attempts)
            again = b"NATS/1.0\r\nNats-Msg-Id: again.%d.%d\r\n\r\n" % (receipt.sequence, receipt.stored_at)
            return _Step(
                receipt, (names.normal, again, body), _term(wire, "given back"), Outcome.RELEASED, done
            )
        if one.action is Action.RETRY and not last:
            answer = b'-NAK {"delay":%d}' % max(0, int(one.delay * 1e9)) if one.delay > 0 else b"-NAK"
            return _Step(receipt, None, answer, Outcome.REJECTED, done)
        place = FAILED if one.action is Action.REJECT else DEAD
        why = "exhausted" if one.action is Action.RETRY else one.why
        burial = Burial(receipt, receipt.body, place, why, one.reason, delivery.attempts)
        return self._burial(burial, wire, done)

    def _burial(self, one: Burial, wire: Wire, done: Done) -> _Step:
        request = bury(
            self._names,
            one.body,
            one.receipt.sequence,
            one.receipt.stored_at,
            wire.max_payload,
            place=one.place,
            why=one.why,
            reason=one.reason,
            attempts=one.attempts,
            by=self._identity,
        )
        return _Step(one.receipt, request, _term(wire, one.why), Outcome.REJECTED, done)

    async def _run(self, steps: Sequence[_Step]) -> None:
        ready = await self._prepare([one for one in steps if one.first is not None])
        answers = [one for one in steps if one.first is None or id(one) in ready]
        while answers:
            now, lease = time.monotonic(), self._lease_of()
            sent = []
            for one in answers:
                if now >= one.receipt.deadline:
                    one.done(Outcome.SUPERSEDED, _LATE)
                elif one.receipt.of_another(lease):
                    one.done(Outcome.MISSING, _ANOTHER)
                else:
                    sent.append(one)
            left = dict(enumerate(sent))
            nobody: list[_Step] = []

            def note(
                index: int, reply: Reply, left: dict[int, _Step] = left, nobody: list[_Step] = nobody
            ) -> None:
                one = left.pop(index)
                if reply.status == NOBODY:
                    nobody.append(one)
                else:
                    one.done(*self._verdict(one.outcome, one.receipt, reply))

            why = await self._send([(one.receipt.subject, b"", one.answer) for one in sent], note)
            for one in left.values():
                one.done(Outcome.UNKNOWN, why)
            answers = await self._try_again(nobody)

    async def _try_again(self, nobody: list[_Step]) -> list[_Step]:
        """The server says that no one received these, so they may be sent again: its servers may be electing
        a leader. Those whose consumer is gone are told so."""
        if not nobody:
            return []
        await asyncio.sleep(_PAUSE)
        try:
            found = await api.consumer_info(
                self._link, self._names.stream, DURABLE, patience=self._link.timeout
            )
        except BrokerError as error:
            for one in nobody:
                one.done(Outcome.UNKNOWN, f"it was not settled: {error}")
            return []
        if found is None:
            for one in nobody:
                one.done(Outcome.MISSING, _GONE)
            return []
        lease, again = read_lease(found), []
        for one in nobody:
            if one.receipt.of_another(lease):
                one.done(Outcome.MISSING, _ANOTHER)
            else:
                again.append(one)
        return again

    async def _prepare(self, steps: Sequence[_Step]) -> set[int]:
        """Send what comes first. Which of the steps may go on; the others are told here, except that a
        release whose note fails is given back all the same."""
        if not steps:
            return set()
        ready: set[int] = set()
        left = dict(enumerate(steps))

        def note(index: int, reply: Reply) -> None:
            one = left.pop(index)
            try:
                read_pub_ack(reply, self._link.name, "store what goes before the settlement")
            except BrokerError as error:
                if one.answer == b"-NAK":
                    ready.add(id(one))
                else:
                    one.done(Outcome.UNKNOWN, f"it was not settled: {error}")
            else:
                ready.add(id(one))

        why = await self._send([one.first for one in steps if one.first is not None], note)
        for one in left.values():
            if one.answer == b"-NAK":
                ready.add(id(one))
            else:
                one.done(Outcome.UNKNOWN, why)
        return ready

    async def _send(self, requests: Sequence[Request], note: Callable[[int, Reply], None]) -> str:
        """Why those that `note` did not get have no answer."""
        try:
            await self._link.ask(requests, note)
        except BrokerError as error:
            return f"it was not settled: {error}"
        return self._unconfirmed()

    def _verdict(self, outcome: Outcome, receipt: Receipt, reply: Reply) -> tuple[Outcome, str]:
        if not reply.status:
            self.refusal = ""
            return (outcome, "") if time.monotonic() < receipt.deadline else (Outcome.UNKNOWN, _DOUBTFUL)
        if reply.status == FORBIDDEN:
            # Without the subject, which is another one each time.
            words = reply.words.partition(" for ")[0]
            self.refusal = f"this user may not acknowledge ({words} for $JS.ACK.>)"
            self.refused_at = time.monotonic()
            return Outcome.UNKNOWN, f"it was not settled: {self.refusal}"
        return Outcome.UNKNOWN, f"the server answered {reply.status} {reply.words}"

    def _unconfirmed(self) -> str:
        return f"NATS at {self._link.name} did not confirm it"


def _noting(finished: list[Receipt], on_result: OnResult) -> OnResult:
    """Besides, keep those that left the queue and had been given back before."""

    def note(one: Settlement, outcome: Outcome, text: str) -> None:
        gone = outcome is Outcome.COMMITTED or (
            outcome is Outcome.REJECTED and one.action in (Action.REJECT, Action.DEAD)
        )
        if gone and one.delivery.receipt.released:
            finished.append(one.delivery.receipt)
        on_result(one, outcome, text)

    return note


def _term(wire: Wire, why: str) -> bytes:
    return b"+TERM " + why.encode() if wire.version >= _TERM_REASON else b"+TERM"


def _teller(one: Settlement, on_result: OnResult) -> Done:
    return lambda outcome, text: on_result(one, outcome, text)
