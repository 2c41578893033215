"""Keeps deliveries alive, says that this worker lives, returns what dead workers left, and notices a loop
that stands still.

Runs on the background thread with its own connection, so that a handler that blocks the main loop stops
neither renewal nor reporting.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection

from worker_runtime.brokers.base import BrokerError, Delivery, Renewer, Timing
from worker_runtime.fenced import note_fence
from worker_runtime.keeping import keep_going
from worker_runtime.outage import Outage
from worker_runtime.rhythm import until_next
from worker_runtime.state import QueueState

#: Seconds without a turn of the main loop that count as a stall.
STALL = 1.0
#: Seconds between two turns of the main loop that are asked for, and between two looks at them. A hundred
#: idle workers on one machine are to cost little: each wake-up of each is paid for.
BEAT = STALL / 2
#: Seconds without an answer after which a look tells; looks are not to the millisecond.
NOTICED = STALL * 0.95
#: Seconds between two looks whether there is something new to announce.
LOOK = 0.5
#: Seconds between two looks at the delayed retries, where this worker knows of none that is due earlier. A
#: worker that waits for work looks more often (`Timing.block`); this finds what dead workers have left when
#: all others are busy.
PROMOTION = 5.0
#: Seconds before it looks again when the broker could not be asked.
PROMOTION_RETRY = 1.0

_BLOCKED = "Await instead of blocking, or make the handler a plain function, which runs in a thread."
_STARVED = "The process gets too little CPU, or a hook or a task of the app blocks the loop."

log = logging.getLogger("queueworker.renewal")


class Renewal:
    """One queue's renewer. Make it and use it on the background loop.

    A broker's fault is expected: it is said in one line and its loop goes on. Anything else is a fault of the
    runtime, which a loop survives a few times; then `give_up` is called with the reason. `on_lost` gets the
    deliveries whose handlers run although another worker has taken them over; both on the background loop.
    """

    def __init__(
        self,
        state: QueueState,
        renewer: Renewer,
        timing: Timing,
        give_up: Callable[[str], None],
        on_lost: Callable[[list[Delivery]], None],
    ) -> None:
        self._state = state
        self._renewer = renewer
        self._timing = timing
        self._give_up = give_up
        self._on_lost = on_lost
        self._tasks: list[asyncio.Task[None]] = []
        #: Passes that moved something: what was taken over may have to wait before it is ready.
        self._recoveries = 0
        self._extra = {"queue": state.queue}
        self._outage = Outage(log, self._extra, state.clock)

    async def start(self) -> None:
        loops = {
            "renewal": self._renew_loop,
            "recovery": self._recover_loop,
            "announcing this worker": self._announce_loop,
            "promotion of delayed retries": self._promote_loop,
        }
        self._tasks = [
            asyncio.create_task(keep_going(loop, f"{name} of {self._state.queue}", self._give_up))
            for name, loop in loops.items()
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._renewer.sign_off()
        except BrokerError:
            pass  # It is cleared away when it has not been heard of for the expiry.
        await self._renewer.close()

    async def verify(self) -> bool:
        """Renew everything now. True when the broker has answered; what it no longer counts as ours is
        then in the state's `lost`."""
        try:
            await self._extend()
        except BrokerError:
            return False
        return True

    async def _extend(self) -> bool:
        """True when there was something to ask the broker for."""
        state = self._state
        # Read before the snapshot: whatever is registered later is not older than this.
        started = state.clock()
        held = state.held()
        gone = await self._renewer.extend(held) if held else ()
        for delivery in gone:
            state.lost[id(delivery)] = delivery
        if gone:
            self._tell_the_running(gone)
        for key in [key for key in list(state.lost) if key not in state.outstanding]:
            state.lost.pop(key, None)
        state.confirmed_at = max(state.confirmed_at, started)
        return bool(held)

    def _tell_the_running(self, gone: Collection[Delivery]) -> None:
        """Their handlers work on what another worker may be doing, too."""
        ours = {id(delivery) for delivery in gone}
        running = [one for one in self._state.running_now() if id(one) in ours and not one.superseded]
        for delivery in gone:
            delivery.superseded = True
        for delivery in running:
            log.warning(
                "what %s still works on is no longer this worker's: another one has it, or will be given it; "
                "the settlement will not count",
                self._state.job_name,
                extra={**self._extra, "message_id": delivery.pid},
            )
        if running:
            self._on_lost(running)

    async def _renew_loop(self) -> None:
        period = self._timing.renewal_period
        failures = 0
        while True:
            try:
                asked = await self._extend()
            except BrokerError as error:
                failures += 1
                self._outage.failed("renewal", error)
                # Spread, so that many workers do not come back at the same moment.
                await asyncio.sleep(min(period, 0.2 * 2 ** min(failures, 8)) * random.uniform(0.5, 1.0))
                continue
            if asked:
                self._outage.worked("renewal")
            failures = 0
            await asyncio.sleep(period)

    async def _recover_loop(self) -> None:
        period = self._timing.renewal_period
        while True:
            try:
                # Ours first: after an outage they may have expired although this process lives.
                await self._extend()
                recovered = await self._renewer.recover()
            except BrokerError as error:
                self._outage.failed("recovery", error)
            else:
                self._outage.worked("recovery")
                if recovered.deliveries or recovered.reservations:
                    self._recoveries += 1
                    log.info(
                        "returned to the queue what others left: %d deliveries, %d from reservations",
                        recovered.deliveries,
                        recovered.reservations,
                        extra=self._extra,
                    )
                if recovered.crash_loops:
                    log.error(
                        "%d messages lost their owner too often and are dead letters now (crash-loop)",
                        recovered.crash_loops,
                        extra=self._extra,
                    )
            # Spread, so that many workers do not look at the same moment.
            await asyncio.sleep(period * random.uniform(0.7, 1.3))

    async def _announce_loop(self) -> None:
        """At the cadence of the renewal, and at once when receiving begins or ends."""
        state, period = self._state, self._timing.renewal_period
        told: tuple[bool, str] | None = None
        due = 0.0
        had: int | None = None
        while True:
            # One that is full, or whose loop stands still, makes no receive that would tell it of a fence.
            took = None if state.silence.asks(state.clock()) else state.received
            if took is not None and took == had and state.phase == "receiving":
                await self._look_for_a_fence()
            had = took
            presence = state.presence()
            news = (presence.receiving, presence.reason)
            if news != told or state.clock() >= due:
                try:
                    await self._renewer.announce(presence)
                except BrokerError as error:
                    self._outage.failed("announcing this worker", error)
                    due = state.clock() + min(period, 1.0)
                else:
                    self._outage.worked("announcing this worker")
                    due = state.clock() + period
                told = news
            await until_next(min(LOOK, period))

    async def _look_for_a_fence(self) -> None:
        try:
            note_fence(self._state, await self._renewer.fence())
        except BrokerError as error:
            self._outage.failed("reading the fence", error)
        else:
            self._outage.worked("reading the fence")

    async def _promote_loop(self) -> None:
        """Delayed retries become ready at about their time: this worker looks as soon as it has made one, and
        when the next one is due."""
        clock = self._state.clock
        seen: tuple[int, int] | None = None
        due = 0.0
        while True:
            made = (self._state.retried, self._recoveries)
            if made != seen or clock() >= due:
                try:
                    promoted = await self._renewer.promote()
                except BrokerError as error:
                    self._outage.failed("promotion of delayed retries", error)
                    due = clock() + PROMOTION_RETRY
                else:
                    self._outage.worked("promotion of delayed retries")
                    wait = PROMOTION if promoted.next_due is None else min(PROMOTION, promoted.next_due)
                    due = clock() + wait
                seen = made
            left = due - clock()
            if left > LOOK:
                await until_next(LOOK)
            else:
                await asyncio.sleep(max(0.0, left) + random.uniform(0.0, 0.02))


class Heartbeat:
    """Watches the main loop from the background loop: asks it for a turn while there is work in this process.
    A process that waits for work is not woken for that: each of its receives is a turn. Looks, too, whether
    the broker owes an answer. `ask` has the main loop call something soon, from any thread."""

    def __init__(
        self,
        states: Callable[[], list[QueueState]],
        ask: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states = states
        self._ask = ask
        self._clock = clock
        self._beat = clock()
        self._asked = 0.0

    def _turned(self) -> None:
        """Run on the main loop."""
        self._beat = self._clock()

    async def watch(self) -> None:
        """Run on the background loop. Tells once when a stall is noticed and once when it is over; and when
        this loop stood still as well, which only something that stops the whole process can do."""
        began, culprits, looked = 0.0, "", self._clock()
        while True:
            now, beat, asked = self._clock(), self._beat, self._asked
            unanswered = asked > beat
            if began and not unanswered:
                log.warning(
                    "event loop runs again after a stall of %.1f s: %s",
                    beat - began,
                    culprits or "no handler ran",
                )
                began = 0.0
            elif unanswered and not began and now - asked > NOTICED:
                began = beat if asked - beat < 2 * BEAT else asked
                culprits = self._running()
                log.warning(
                    "event loop has stood still for %.1f s: %s. While it does, nothing is received or "
                    "settled in this process; renewal goes on. %s",
                    now - began,
                    culprits or "no handler runs",
                    _BLOCKED if culprits else _STARVED,
                )
            # Of a time in which a loop stood still, hardly anything counts: nobody could read an answer.
            passed, looked = 0.0 if unanswered else min(now - looked, STALL), now
            states = self._states()
            for state in states:
                state.silence.look(passed)
            if not unanswered and not (states and all(_waits_for_work(state) for state in states)):
                self._asked = self._clock()
                self._ask(self._turned)
            ran, asleep = self._names(), self._clock()
            await until_next(BEAT)
            stood = self._clock() - asleep
            if stood > STALL:
                log.warning(
                    "the whole process has stood still for %.1f s: %s. Nothing was renewed in that time. "
                    "It was paused, got no turn, or a native call kept the interpreter to itself: run such "
                    "calls in another process, or set an expiry that is longer than they are.",
                    stood,
                    ", ".join(dict.fromkeys([*ran, *self._names()])) or "no handler runs",
                )

    def _running(self) -> str:
        return ", ".join(self._names())

    def _names(self) -> list[str]:
        return [
            f"{state.job_name} handles message {delivery.pid}"
            for state in self._states()
            for delivery in state.running_now()
        ]


def _waits_for_work(state: QueueState) -> bool:
    return not state.outstanding and state.silence.waits(state.clock())
