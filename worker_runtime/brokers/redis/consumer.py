"""Receiving and settling on one queue.

receive = reserve -> decode -> claim. When nothing was there it waits by one bounded blocking move into
staging; the answer holds the message, and one command behind it claims that from staging: take. What the
server has handed over is never only in this process: it is in staging, in the reservation or owned, and this
object remembers what it asked for without an answer until it is finished.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from worker_runtime.brokers.base import (
    Action,
    BrokerError,
    BrokerFullError,
    BrokerRefusedError,
    BrokerUnavailableError,
    Fenced,
    OnResult,
    Outcome,
    Received,
    Settlement,
    Timing,
    WorkerIdentity,
)
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.poison import encode_why
from worker_runtime.brokers.redis.reasons import encode_reason
from worker_runtime.brokers.redis.reservation import Reservation
from worker_runtime.brokers.redis.scripts import Call
from worker_runtime.brokers.redis.wire import Command, LostReplyError, ReplyError
from worker_runtime.envelope import retry_envelope

_LETTERS = {
    Action.COMMIT: "c",
    Action.REJECT: "r",
    Action.DEAD: "d",
    Action.RETRY: "y",
    Action.RELEASE: "l",
}
_VERDICTS: dict[int, tuple[Outcome, str]] = {
    ord("c"): (Outcome.COMMITTED, ""),
    ord("r"): (Outcome.REJECTED, ""),
    ord("d"): (Outcome.REJECTED, ""),
    ord("y"): (Outcome.REJECTED, ""),
    ord("l"): (Outcome.RELEASED, ""),
    ord("s"): (Outcome.SUPERSEDED, "another delivery of the same message owns it now"),
    ord("m"): (
        Outcome.MISSING,
        "nobody owns it: settled before, or taken over and given back, or its record is gone",
    ),
}

#: Seconds between two questions whether a server has room again.
_ROOM_PAUSE = 0.5
#: In seconds. A receive that begins so soon after the last one found nothing begins with its wait.
_STILL_EMPTY = 0.1
#: In seconds. Redis 6.2 rounds a millisecond down to 0, which means for ever.
_SHORTEST_BLOCK = 0.01


class RedisConsumer:
    """Implements `Consumer`. `make_link` opens nothing."""

    def __init__(
        self, keys: QueueKeys, identity: WorkerIdentity, timing: Timing, make_link: Callable[[], Link]
    ) -> None:
        self._keys = keys
        self._identity = identity
        self._timing = timing
        self._commands = make_link()
        self._waiting = make_link()
        # Unique even when two consumers share an identity, so that a token names one delivery. It also makes
        # a token longer than 64 bytes: the server then keeps the owners in a table, not in a list that it
        # walks for each.
        self._origin = f"{identity.worker}.{secrets.token_hex(16)}"
        self._count = 0
        self._unfinished: Reservation | None = None
        self._one_at_a_time = asyncio.Lock()
        self._interrupted = False
        self._empty_until = 0.0
        self._waited = False
        #: A wait is under way, or was given up: it may have moved something that nobody has heard of.
        self._moving = False
        self._closed = False
        self._giving_back: set[asyncio.Task[None]] = set()

    # receiving

    async def receive(self, limit: int) -> Received:
        """See `Consumer.receive`."""
        if limit < 1:
            return Received()
        async with self._one_at_a_time:
            while self._giving_back:
                await asyncio.wait(self._giving_back)
            try:
                return await self._receive(limit)
            except asyncio.CancelledError:
                back = asyncio.ensure_future(self._give_back())
                self._giving_back.add(back)
                back.add_done_callback(self._giving_back.discard)
                raise

    async def _receive(self, limit: int) -> Received:
        if asyncio.get_running_loop().time() > self._empty_until:
            received = await self._reserve_and_claim(limit)
            if received.deliveries or received.poisoned or received.fenced or self._interrupted:
                return received
        self._empty_until = 0.0
        received, moved = await self._wait_and_take(limit)
        if received.fenced:
            # What our own wait moved would lie in staging until somebody else reserves.
            await self._unstage()
        elif not moved and not received.deliveries and not self._interrupted:
            received = await self._promote_and_reserve(limit)
        return received

    def interrupt(self) -> None:
        """See `Consumer.interrupt`."""
        self._interrupted = True
        self._waiting.hang_up()

    async def _give_back(self) -> None:
        """The caller went away while the server was, perhaps, handing work over: that goes back."""
        try:
            await self._waiting.let_go()
            if self._unfinished is not None and self._unfinished.in_doubt:
                received = await self._reserve_and_claim(0)
                back = [Settlement(one, Action.RELEASE) for one in received.deliveries]
                await self.settle(back, lambda *_: None)
            if self._moving:
                await self._unstage()
                self._moving = False
        except BrokerError:
            pass  # The next receive asks for it again; else it is recovered at its deadline.

    async def _wait_and_take(self, limit: int) -> tuple[Received, bool]:
        """Wait for work, at most `Timing.block` seconds, and take it. False when the wait brought nothing."""
        self._waited = self._moving = True
        reservation = self._begun()
        block = max(self._timing.block, _SHORTEST_BLOCK)

        def follow(raw: bytes | None) -> Command | None:
            if raw is not None:
                reservation.move(raw)
            return self._take(reservation).by_sha() if reservation.moved is not None else None

        try:
            raw, reply = await self._waiting.call_and_follow(
                ("BLMOVE", self._keys.ready, self._keys.staging, "RIGHT", "LEFT", f"{block:.3f}"),
                follow,
                "wait for work",
                timeout=block + self._timing.command_timeout,
                blocks=block,
            )
            self._moving = False
        except BrokerUnavailableError:
            if not self._interrupted:
                raise  # The next receive asks again, and for what lies in staging.
            if reservation.moved is None:
                return Received(), False  # What the wait has moved after all is given back from staging.
            # We ended the wait and the server has let go of it, but it may have been taken just before.
            try:
                return await self._reserve_and_claim(0), False
            except BrokerUnavailableError:
                return Received(), False
        if raw is None:
            return Received(), False
        received = None if reply is None else self._taken(reservation, reply)
        if received is None:
            received = await self._reserve_and_claim(limit)
        return received, True

    def _begun(self) -> Reservation:
        """The reservation that is not finished, else a fresh one."""
        reservation = self._unfinished
        if reservation is None:
            self._count += 1
            name = f"{self._origin}.{self._count:x}"
            reservation = self._unfinished = Reservation(
                name, f"{self._identity.revision} {self._identity.worker} {name}", self._keys.queue
            )
        return reservation

    def _reserve(self, reservation: Reservation, limit: int) -> Call:
        return transitions.reserve(
            self._keys, reservation.id, self._identity.revision, limit, self._timing.reservation
        )

    async def _reserve_and_claim(self, limit: int) -> Received:
        reservation = self._begun()
        if reservation.moved is not None:
            received = await self._ask_to_take(reservation)
            if received is not None:
                return received
        reply = None
        if not reservation.reserved:
            reservation.asked = True
            reply = await self._commands.run(self._reserve(reservation, limit), "reserve work", replay=True)
        return await self._claim_all(reservation, reply)

    def _take(self, reservation: Reservation) -> Call:
        assert reservation.moved is not None
        raw, delivery = reservation.moved
        return transitions.take(
            self._keys,
            raw,
            delivery.pid,
            reservation.token,
            self._identity.revision,
            self._timing.expiry,
        )

    async def _ask_to_take(self, reservation: Reservation) -> Received | None:
        try:
            reply = await self._commands.run(
                self._take(reservation), "claim what its wait brought", replay=True
            )
        except BrokerRefusedError:
            reservation.moved = None  # Reserve and claim say what is wrong, and with which key.
            return None
        return self._taken(reservation, reply)

    def _taken(self, reservation: Reservation, reply: Sequence[Any]) -> Received | None:
        """None when it is not ours: somebody else was faster, or it takes a reservation."""
        assert reservation.moved is not None
        _, delivery = reservation.moved
        reservation.moved = None
        if reply[0] == b"claimed":
            self._unfinished = None
            return Received((delivery,))
        if reply[0] == b"fenced":
            return Received(fenced=Fenced(reply[1].decode("utf-8", "replace")))
        return None

    async def _claim_all(self, reservation: Reservation, reply: Sequence[Any] | None) -> Received:
        """`reply` is the one of reserve, None when the reservation has taken it before."""
        if reply is not None:
            reservation.asked = False
            if reply[0] == b"empty":
                return Received()
            if reply[0] == b"fenced":
                return Received(fenced=Fenced(reply[1].decode("utf-8", "replace")))
            reservation.take(reply)
        try:
            while reservation.entries or reservation.poison:
                if not await self._claim(reservation):
                    break
            self._unfinished = None
        except BrokerError:
            if not reservation.owned:
                raise
        return Received(*reservation.hand_over())

    async def _claim(self, reservation: Reservation) -> bool:
        """One claim of what is left in the reservation; False when nothing of it is left on the server."""
        reply = await self._commands.run(
            transitions.claim(
                self._keys,
                reservation.id,
                reservation.deadline,
                reservation.token,
                self._identity.revision,
                self._timing.expiry,
                reservation.pids(),
                [(position, encode_why(why, self._identity)) for position, why in reservation.poison],
            ),
            "claim what it reserved",
            replay=True,
        )
        if reply[0] == b"claimed":
            reservation.claimed_all_but(reply[1:])
            return True
        reservation.claimed_before(reply[1:])
        return False

    async def _promote_and_reserve(self, limit: int) -> Received:
        """Nothing came: look whether a delayed retry is due that no renewal thread has seen, and reserve.
        Both in one go, since every idle worker does it after every wait."""
        reservation = self._begun()
        promote, reserve = transitions.promote_delayed(self._keys), self._reserve(reservation, limit)
        doing, promoted, taken = "look for retries that are due", None, None
        reservation.asked = True
        try:
            promoted, taken = await self._commands.batch((promote.by_sha(), reserve.by_sha()), doing)
        except BrokerUnavailableError:
            pass  # One by one they are asked again, and followed to where they are sent.
        if promoted is None or isinstance(promoted, ReplyError):
            await self._commands.run(promote, doing, replay=True)
        if taken is None or isinstance(taken, ReplyError):
            return await self._reserve_and_claim(limit)
        received = await self._claim_all(reservation, taken)
        if received == Received():
            self._empty_until = asyncio.get_running_loop().time() + _STILL_EMPTY
        return received

    async def _unstage(self) -> None:
        while await self._commands.run(transitions.unstage(self._keys), "return staged work", replay=True):
            pass

    # settling

    async def settle(self, settlements: Sequence[Settlement], on_result: OnResult) -> None:
        """See `Consumer.settle`."""
        size = transitions.MAX_ENTRIES
        if len(settlements) <= size:
            await self._settle(settlements, on_result)
            return
        # The last come first, since every release goes to the very head.
        starts = range(0, len(settlements), size)
        for start in reversed(starts):
            await self._settle(settlements[start : start + size], on_result)

    async def _settle(self, settlements: Sequence[Settlement], on_result: OnResult) -> None:
        if not settlements:
            return
        actions = "".join([_LETTERS[one.action] for one in settlements])
        call = transitions.settle(
            self._keys,
            [one.delivery.pid for one in settlements],
            [one.delivery.receipt for one in settlements],
            actions,
            self._timing.job_ttl,
            () if actions.count("c") == len(actions) else self._extras(settlements),
        )
        try:
            verdicts: bytes = await self._run_settle(call)
        except LostReplyError as error:
            for one in settlements:
                on_result(one, Outcome.UNKNOWN, str(error))
            return
        except BrokerError as error:
            for one in settlements:
                on_result(one, Outcome.UNKNOWN, f"it was not settled: {error}")
            return
        for one, letter in zip(settlements, verdicts, strict=True):
            outcome, text = _VERDICTS[letter]
            on_result(one, outcome, text)

    async def _run_settle(self, call: Call) -> Any:
        """Wait an outage or a full server out, as long as nothing was done: what was finished meanwhile can
        be committed then."""
        while True:
            try:
                return await self._commands.run(
                    call, "settle deliveries", patience=self._timing.command_timeout
                )
            except BrokerUnavailableError as error:
                if isinstance(error, LostReplyError) or self._interrupted:
                    raise
            except BrokerFullError:
                if self._interrupted:
                    raise
                await asyncio.sleep(_ROOM_PAUSE)

    def _extras(self, settlements: Sequence[Settlement]) -> list[str | bytes | int]:
        """What the settle transition wants to know of rejections, in their order."""
        extras: list[str | bytes | int] = []
        for one in settlements:
            if one.action is Action.RETRY:
                delivery = one.delivery
                extras.append(transitions.milliseconds(one.delay))
                extras += retry_envelope(self._keys.queue, delivery.payload, delivery.attempts + 1)
            elif one.action is Action.REJECT or one.action is Action.DEAD:
                extras.append(encode_reason(one.why, one.reason, self._identity) if one.reason else "")
        return extras

    # the end

    async def close(self) -> None:
        """See `Consumer.close`. What our own waits may have left in staging goes back to ready."""
        if self._closed:
            return
        self._closed = self._interrupted = True
        await self._waiting.close()
        async with self._one_at_a_time:
            while self._giving_back:
                await asyncio.wait(self._giving_back)
            await self._give_back()
        if self._waited:
            try:
                await self._unstage()
            except BrokerError:
                pass  # The next reserve of any worker takes it from staging.
        await self._commands.close()
