"""Which server is the primary now: asked of the Sentinels, verified with the server itself, and watched for
as long as a connection to it is used.

A Sentinel may be behind, and a server that was the primary may not know yet that it no longer is one. So
every Sentinel of the URL is asked, the answer with the newest configuration epoch counts, the server has to
confirm its role, and when the Sentinels name another primary, connections to the old one are cut: what waits
for an answer there gets LostReplyError, since nobody can say what became of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from worker_runtime.brokers.base import BrokerError, BrokerRefusedError, BrokerUnavailableError
from worker_runtime.brokers.redis.address import Address, Node, Watched
from worker_runtime.brokers.redis.faults import explained
from worker_runtime.brokers.redis.route import Route, open_wire
from worker_runtime.brokers.redis.wire import NotSentError, ReplyError, Wire
from worker_runtime.pausing import pause

#: Seconds between two looks at what the Sentinels say, while a connection to the primary is used.
LOOK = 1.0
#: How long one Sentinel may take to answer, in seconds.
ANSWER = 1.0
#: An older epoch than the newest that was seen is believed after this many seconds, and only from more than
#: half of the Sentinels: they were set up anew. Before that they are behind; they tell each other every 2 s.
SET_UP_ANEW = 10.0

_AS_WHOM = "give a user who may ask it as sentinel_username and sentinel_password in the URL"

log = logging.getLogger("queueworker.sentinel")


@dataclass(frozen=True, slots=True)
class Named:
    """One Sentinel's answer: the primary, and the epoch of the configuration that says so."""

    sentinel: Node
    primary: Node
    #: 0 when the Sentinel does not let this user ask for it.
    epoch: int

    def __str__(self) -> str:
        return f"{self.sentinel} names {self.primary} (epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class Silent:
    """One Sentinel that named nobody, and why."""

    sentinel: Node
    why: str

    def __str__(self) -> str:
        return self.why


class Sentinels:
    """The Sentinels of one URL, on one event loop. They are asked nothing while no connection is used."""

    def __init__(self, address: Address, watched: Watched) -> None:
        self._address = address
        self._name = watched.primary
        self._as_whom = dataclasses.replace(
            address, username=watched.username, password=watched.password, database=0
        )
        self._wires: dict[Node, Wire] = {}
        self._opening = {node: asyncio.Lock() for node in address.nodes}
        self._connecting = 0
        #: Each connection in use or in the making -> where it leads. Done when the Sentinels name another.
        self._held: dict[asyncio.Future[str], Node] = {}
        self._nothing_held = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._epoch = 0
        self._older_since: float | None = None
        self._unheard_since: float | None = None

    async def connect(self, timeout: float) -> tuple[Node, Wire]:
        """A connection to the primary, closed as soon as the Sentinels name another one. Each step takes at
        most `timeout` seconds. Raises NotSentError with what each Sentinel said, or what the primary refused.
        """
        self._connecting += 1
        try:
            answers = await self._ask(timeout)
            believed = self._believed(answers)
            if not believed:
                raise NotSentError(self._nobody(answers))
            self._cut_all_but({one.primary for one in believed})
            failures: list[str] = []
            for node in dict.fromkeys(one.primary for one in believed):
                try:
                    return node, await self._open(node, timeout)
                except BrokerUnavailableError as error:
                    failures.append(str(error))
            raise NotSentError(f"the primary {self._name} cannot be used: {'; '.join(failures)}")
        finally:
            self._connecting -= 1
            self._let_go_if_idle()

    # asking

    async def _ask(self, timeout: float) -> list[Named | Silent]:
        limit = min(timeout, ANSWER)
        return await asyncio.gather(*(self._ask_one(node, limit) for node in self._address.nodes))

    async def _ask_one(self, node: Node, timeout: float) -> Named | Silent:
        try:
            async with self._opening[node]:
                wire = self._wires.get(node)
                if wire is None or not wire.open:
                    wire = self._wires[node] = await open_wire(self._as_whom, node, timeout)
            questions = wire.send_many(
                (("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name), ("SENTINEL", "MASTER", self._name))
            )
        except BrokerUnavailableError as error:
            return Silent(node, str(error).replace("Redis at", "the Sentinel", 1))
        except BrokerError as error:
            return Silent(node, f"{str(error).replace('Redis at', 'the Sentinel', 1)}; {_AS_WHOM}")
        where, facts = await asyncio.gather(
            *(wire.answer(one, timeout) for one in questions), return_exceptions=True
        )
        if isinstance(where, ReplyError):
            return Silent(node, _refusal(node, where))
        if isinstance(where, BaseException):
            return Silent(node, f"the Sentinel {where}")
        if where is None:
            return Silent(node, f"the Sentinel {node} watches nothing of that name")
        try:
            host, port = where
            return Named(node, Node(host.decode(), int(port)), _epoch(facts))
        except (TypeError, ValueError, KeyError, AttributeError):
            return Silent(node, f"{node} answered {where!r}, which is no address; is it a Sentinel?")

    def _believed(self, answers: Sequence[Named | Silent]) -> list[Named]:
        """Those with the newest epoch; nobody when all that answer are behind what was seen before."""
        named = [one for one in answers if isinstance(one, Named)]
        if not named:
            return []
        newest = max(one.epoch for one in named)
        if newest >= self._epoch:
            self._older_since = None
        else:
            now = asyncio.get_running_loop().time()
            self._older_since = self._older_since or now
            if now - self._older_since < SET_UP_ANEW or 2 * len(named) <= len(answers):
                return []
        self._epoch = newest
        return [one for one in named if one.epoch == newest]

    def _nobody(self, answers: Sequence[Named | Silent]) -> str:
        said = "; ".join(map(str, answers))
        if any(isinstance(one, Named) for one in answers):
            return (
                f"no Sentinel is up to date about the primary {self._name}: epoch {self._epoch} was seen"
                f" before, and now {said}; bring the other Sentinels back"
            )
        if all(isinstance(one, Silent) and "watches nothing" in one.why for one in answers):
            return (
                f"no Sentinel knows the primary {self._name}: {said}; correct the name at the end of the URL"
                " (SENTINEL MASTERS lists the names)"
            )
        return f"no Sentinel names the primary {self._name}: {said}"

    # connecting

    async def _open(self, node: Node, timeout: float) -> Wire:
        ended = self._hold(node)
        opening = asyncio.ensure_future(self._verified(node, timeout))
        try:
            await asyncio.wait((opening, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise NotSentError(f"Redis at {node} was given up: {ended.result()}")
            wire = opening.result()
        except BaseException:
            opening.cancel()
            opening.add_done_callback(_abort_unused)
            self._release(ended)
            raise
        ended.add_done_callback(lambda done: None if done.cancelled() else wire.abort(done.result()))
        wire.on_closed(lambda: self._release(ended))
        return wire

    async def _verified(self, node: Node, timeout: float) -> Wire:
        """A connection to a server that says itself that it is the primary."""
        wire = await open_wire(self._address, node, timeout)
        try:
            role = await wire.call(("ROLE",), timeout)
            if role[0] != b"master":
                raise NotSentError(
                    f"Redis at {node} is named as the primary {self._name} and says that it is a"
                    f" {_text(role[0])}: the Sentinels are behind or a failover is going on"
                )
        except ReplyError as error:
            wire.abort("it refused to tell its role")
            if error.code == "NOPERM":
                raise BrokerRefusedError(
                    f"Redis at {node} does not tell this user whether it is the primary ({error}); with"
                    " Sentinel this has to be known: allow the user the command ROLE (+role)"
                ) from None
            raise explained(error, str(node), "tell its role") from None
        except BrokerUnavailableError as error:
            wire.abort("it was not used")
            raise NotSentError(str(error)) from None
        except BaseException:
            wire.abort("it was given up")
            raise
        return wire

    # watching

    def _hold(self, node: Node) -> asyncio.Future[str]:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._held[ended] = node
        self._nothing_held.clear()
        if self._watch is None:
            self._watch = asyncio.create_task(self._look_again(), name=f"sentinels of {self._name}")
        return ended

    def _release(self, ended: asyncio.Future[str]) -> None:
        self._held.pop(ended, None)
        ended.cancel()
        if not self._held:
            self._nothing_held.set()

    async def _look_again(self) -> None:
        try:
            while self._held:
                await pause(LOOK * random.uniform(0.8, 1.0), self._nothing_held)
                if self._held:
                    self._judge(await self._ask(ANSWER))
        finally:
            self._watch = None
            self._let_go_if_idle()

    def _judge(self, answers: Sequence[Named | Silent]) -> None:
        """What a look at the Sentinels means for the connections in use."""
        believed = self._believed(answers)
        now = asyncio.get_running_loop().time()
        if not believed:
            if self._unheard_since is None:
                self._unheard_since = now
                log.warning("a failover would not be noticed here: %s", self._nobody(answers))
            return
        if self._unheard_since is not None:
            log.info("the Sentinels of %s answer again after %.1f s", self._name, now - self._unheard_since)
            self._unheard_since = None
        self._cut_all_but({one.primary for one in believed})

    def _cut_all_but(self, primaries: set[Node]) -> None:
        """Close the connections to every other server."""
        left = {
            ended: node for ended, node in self._held.items() if node not in primaries and not ended.done()
        }
        if not left:
            return
        new, old = " or ".join(map(str, primaries)), ", ".join(map(str, set(left.values())))
        log.info("the primary %s is %s now; connections to %s are cut", self._name, new, old)
        for ended in left:
            ended.set_result(f"the Sentinels name {new} as the primary {self._name} now")

    def _let_go_if_idle(self) -> None:
        if self._connecting or self._held or self._watch is not None:
            return
        for wire in self._wires.values():
            wire.abort("nothing more is asked")
        self._wires.clear()


class SentinelsOfLoop:
    """Connections belong to an event loop, and a worker has two: each gets Sentinels of its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = Lock()
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, Sentinels] = WeakKeyDictionary()

    def here(self) -> Sentinels:
        assert self._address.sentinel is not None
        with self._lock:
            loop = asyncio.get_running_loop()
            if loop not in self._of:
                self._of[loop] = Sentinels(self._address, self._address.sentinel)
            return self._of[loop]


class SentinelRoute(Route):
    """The way to the primary that Sentinels watch, found anew for each connection."""

    def __init__(self, address: Address, sentinels: SentinelsOfLoop) -> None:
        super().__init__(address, 0)
        self._sentinels = sentinels
        self._primary: Node | None = None

    @property
    def name(self) -> str:
        return str(self._primary) if self._primary else self._address.display_url

    @property
    def moves(self) -> bool:
        return True

    async def connect(self, timeout: float) -> Wire:
        self._primary, wire = await self._sentinels.here().connect(timeout)
        return wire

    def forget(self, name: str) -> None:
        """Nothing is kept that could be out of date."""

    async def replaced(self, name: str, timeout: float) -> bool:
        """Whoever is replaced has lost its connections by then: the Sentinels are asked all the time."""
        return False


def _abort_unused(opening: asyncio.Future[Wire]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abort("it was given up")


def _epoch(facts: Any) -> int:
    if isinstance(facts, BaseException):
        return 0
    return int(dict(zip(facts[::2], facts[1::2], strict=True))[b"config-epoch"])


def _refusal(node: Node, error: ReplyError) -> str:
    if error.code in {"NOAUTH", "NOPERM", "WRONGPASS"}:
        return f"the Sentinel {node} refuses to be asked ({error}); {_AS_WHOM}"
    if "unknown command" in str(error):
        return f"{node} is not a Sentinel ({error}); give the Sentinels' port, or use a redis:// URL"
    return f"the Sentinel {node} refuses to be asked ({error})"


def _text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)
