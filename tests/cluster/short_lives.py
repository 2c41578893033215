"""An operator that dies by SIGKILL at writes of its own, each time before or after the other side heard it.

Only writes count. Between two reads of the operator nothing of its doing changes outside it, and it keeps
nothing that outlives it: a death at a read is the death after the last write before it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.brokers.fault_proxy import Fault as BrokerFault, FaultProxy, Seen
from tests.cluster.call_proxy import Body, Call, CallProxy, Fault, Says
from tests.cluster.operators import OperatorProcess

#: What the operator changes on a broker.
_CHANGES = frozenset(
    {"HSET", "HDEL", "recover_reservation", "recover_delivery", "unstage", "promote_delayed"}
)


@dataclass(frozen=True)
class Write:
    """A write to the API server or to the broker. Marks of a new epoch count as none: every incarnation
    begins with them, so one that dies at them has not begun."""

    #: Of all writes that the other side has done, and of those of this incarnation; both from 1.
    number: int
    in_life: int
    #: Incarnation, from 1.
    life: int
    #: Whether the other side has done it already.
    done: bool
    what: str


#: Whether the operator dies at this moment.
Rule = Callable[[Write], bool]


def at_every_write(write: Write) -> bool:
    """No incarnation gets further than one write after the last: by turns it dies when its first is done,
    unheard, and when it is about to send its second."""
    return write.in_life == 1 if write.done and write.life % 2 else not write.done and write.in_life == 2


def never(write: Write) -> bool:
    return False


@dataclass
class ShortLives:
    """`operator` runs behind both proxies, and is started again at once whenever it was killed."""

    operator: OperatorProcess
    api: CallProxy
    broker: FaultProxy
    dies: Rule = never
    life: int = 1
    done: int = 0
    in_life: int = 0
    deaths: list[str] = field(default_factory=list)
    #: Every status that was written, in order.
    statuses: list[Body] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.api.before, self.api.after = self._call, self._answer
        self.broker.before, self.broker.after = self._command, self._reply

    def from_now_on(self, dies: Rule) -> None:
        """Another rule, which counts from here."""
        with self._turn:
            self.dies, self.done, self.in_life = dies, 0, 0

    @property
    def stable(self) -> list[str]:
        """The stable revisions in the order in which they became it."""
        names = [status["stable"]["revision"] for status in self.statuses if "stable" in status]
        return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]

    def _call(self, call: Call) -> Fault | Says | None:
        counts = call.writes and not call.marks
        return Fault.CUT_BEFORE if counts and self._ends(str(call), done=False) else None

    def _answer(self, call: Call, status: int, body: Body) -> Fault | None:
        if not call.writes or call.marks or status >= 300:
            return None
        if call.kind == "queueworkers/status":
            self.statuses.append(body["status"])
        return Fault.CUT_AFTER if self._ends(str(call), done=True) else None

    def _command(self, seen: Seen) -> BrokerFault:
        ends = seen.name in _CHANGES and self._ends(seen.name, done=False)
        return BrokerFault.CUT_BEFORE if ends else BrokerFault.PASS

    def _reply(self, seen: Seen) -> BrokerFault:
        failed = isinstance(seen.reply, Exception)
        ends = seen.name in _CHANGES and not failed and self._ends(seen.name, done=True)
        return BrokerFault.CUT_AFTER if ends else BrokerFault.PASS

    def _ends(self, what: str, *, done: bool) -> bool:
        with self._turn:
            if done:
                self.done, self.in_life = self.done + 1, self.in_life + 1
            ahead = 0 if done else 1
            write = Write(self.done + ahead, self.in_life + ahead, self.life, done, what)
            if not self.dies(write):
                return False
            self.operator.kill()
            self.deaths.append(f"{'after' if done else 'before'} {write.number} {what}")
            self.life, self.in_life = self.life + 1, 0
            self.operator.start()
            return True


@contextmanager
def broker_proxy(host: str, port: int) -> Iterator[FaultProxy]:
    """A proxy in front of a Redis server, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(30)

    proxy = FaultProxy(port, host_of_server=host)
    try:
        run(proxy.__aenter__())
        yield proxy
        run(proxy.__aexit__())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
