"""A connection that comes back: it connects when needed, follows the cluster, and never sends a command
twice unless the server said that it did not run it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from worker_runtime.brokers.base import BrokerError, BrokerUnavailableError
from worker_runtime.brokers.redis.faults import ELSEWHERE, LATER, explained
from worker_runtime.brokers.redis.route import Route
from worker_runtime.brokers.redis.scripts import Call
from worker_runtime.brokers.redis.wire import Command, Follow, LostReplyError, NotSentError, ReplyError, Wire

_REDIRECTIONS = 5
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
#: Seconds between what a command may rightly take and the question whether its server was replaced.
_SILENCE = 1.0


class Link:
    """`timeout` is how long one command may take, in seconds."""

    def __init__(self, route: Route, timeout: float) -> None:
        self._route = route
        self._timeout = timeout
        self._wire: Wire | None = None
        self._detours: set[Wire] = set()
        self._doubts: set[asyncio.Task[None]] = set()
        self._connecting = asyncio.Lock()
        self._shut = False

    @property
    def name(self) -> str:
        return self._route.name

    async def call(
        self,
        command: Command,
        doing: str,
        *,
        timeout: float | None = None,
        patience: float = 0.0,
        blocks: float = 0.0,
    ) -> Any:
        """The reply to one command. `doing` completes "Redis cannot ..." in error texts. The server may keep
        it waiting for `blocks` seconds by right.

        For `patience` seconds it tries again after faults that mean the command did not run (no connection,
        loading, failover). Raises LostReplyError when it may have run, NotSentError or another
        BrokerUnavailableError when it did not, BrokerRefusedError when it never will, and ReplyError only
        for NOSCRIPT.
        """
        timeout = self._timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        pause, redirections = _FIRST_PAUSE, 0
        while True:
            fault: BrokerUnavailableError
            wire: Wire | None = None
            try:
                wire = await self._opened()
                return await self._send(wire, command, timeout, blocks)
            except NotSentError as error:
                fault = error
            except ReplyError as error:
                if error.code == "NOSCRIPT":
                    raise
                if error.code not in LATER and error.code not in ELSEWHERE:
                    raise explained(error, self.name, doing) from None
                assert wire is not None
                if self._turn(error, wire) and redirections < _REDIRECTIONS:
                    redirections += 1
                    continue
                unavailable = explained(error, wire.name, doing)
                if not isinstance(unavailable, BrokerUnavailableError):
                    raise unavailable from None
                fault = unavailable
            if self._shut or loop.time() + pause > until:
                raise fault
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def call_and_follow(
        self, command: Command, follow: Follow, doing: str, *, timeout: float, blocks: float
    ) -> tuple[Any, Any]:
        """The replies to a command that may block and to the one that `follow` makes of its reply, sent the
        moment that is read. The second is None when nothing was sent, or the server refused it: then it did
        not run.

        Raises as `call` without patience. LostReplyError may mean that either or both have run.
        """
        redirections = 0
        while True:
            wire = await self._opened()
            first, second = wire.send_followed(command, follow)
            try:
                reply = await self._answer(wire, first, timeout, blocks)
            except ReplyError as error:
                refusal = error
            else:
                try:
                    return reply, await self._answer(wire, second, self._timeout)
                except ReplyError:
                    return reply, None
            if refusal.code == "ASK" and self._route.cluster:
                return await self._ask(refusal, command, timeout), None
            redirections += 1
            if not self._turn(refusal, wire) or redirections > _REDIRECTIONS:
                raise explained(refusal, wire.name, doing) from None

    async def run(self, call: Call, doing: str, *, patience: float = 0.0, replay: bool = False) -> Any:
        """Run a transition. With `replay` a lost answer is asked for once more: only for transitions that
        give the same answer to the same call."""
        try:
            return await self._run(call, doing, patience)
        except LostReplyError:
            if not replay or self._shut:
                raise
        return await self._run(call, doing, patience)

    async def _run(self, call: Call, doing: str, patience: float) -> Any:
        try:
            return await self.call(call.by_sha(), doing, patience=patience)
        except ReplyError:
            return await self.call(call.by_source(), doing, patience=patience)

    async def batch(self, commands: Sequence[Command], doing: str) -> list[Any]:
        """Replies of commands sent in one go, each a reply or a ReplyError. Only for reads and for commands
        whose author can live with a LostReplyError of the whole."""
        fault: BrokerError = NotSentError(f"Redis at {self.name} sent this client around in circles")
        for _ in range(_REDIRECTIONS):
            wire = await self._opened()
            replies: list[Any] = []
            for future in wire.send_many(commands):
                try:
                    replies.append(await self._answer(wire, future, self._timeout))
                except ReplyError as error:
                    replies.append(error)
            refusals = [one for one in replies if isinstance(one, ReplyError)]
            turning = next((one for one in refusals if one.code in ELSEWHERE or one.code in LATER), None)
            if turning is None:
                return replies
            redirected = self._turn(turning, wire)
            # Only when not one of them ran is the whole asked for elsewhere.
            if len(refusals) < len(replies) or turning.code not in ELSEWHERE:
                return replies
            fault = explained(turning, wire.name, doing)
            if not redirected:
                break
        raise fault

    async def transaction(self, commands: Sequence[Command], doing: str) -> list[Any]:
        """Replies of reads that the server runs at one moment, each a reply or a ReplyError. Raises
        ReplyError for the first that it does not even take; then none of them ran."""
        fault: BrokerError = NotSentError(f"Redis at {self.name} sent this client around in circles")
        for _ in range(_REDIRECTIONS):
            *taken, done = await self.batch((("MULTI",), *commands, ("EXEC",)), doing)
            refusals = [one for one in taken if isinstance(one, ReplyError)]
            if not refusals:
                if isinstance(done, ReplyError):
                    raise done
                replies: list[Any] = done
                return replies
            elsewhere = next((one for one in refusals if one.code in ELSEWHERE), None)
            if elsewhere is None:
                raise refusals[0]
            fault = explained(elsewhere, self.name, doing)
            if elsewhere.code != "MOVED" or not self._route.cluster:
                break
        raise fault

    def hang_up(self) -> None:
        """Take no more commands, and tell the server so: it ends a blocked one and forgets this client."""
        self._shut = True
        for wire in (self._wire, *self._detours):
            if wire is not None:
                wire.hang_up()

    async def let_go(self, timeout: float = 1.0) -> None:
        """After this no command of ours can still begin on the server, if it answers within `timeout`. The
        next call makes a new connection."""
        for detour in self._detours:
            detour.hang_up()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.hang_up()
            await wire.closed(timeout)
            wire.abort("the connection was closed here")

    async def close(self, timeout: float = 1.0) -> None:
        """As `let_go`, and take no more commands."""
        self._shut = True
        for doubt in self._doubts:
            doubt.cancel()
        await self.let_go(timeout)

    async def _connect(self) -> Wire:
        async with self._connecting:
            if self._shut:
                raise NotSentError(f"the connection to {self.name} was closed here")
            if self._wire is not None and self._wire.open:
                return self._wire
            wire = await self._route.connect(self._timeout)
            if self._shut:
                wire.abort("the connection was closed here")
                raise NotSentError(f"the connection to {self.name} was closed here")
            self._wire = wire
            return wire

    async def _opened(self) -> Wire:
        wire = self._wire
        return wire if wire is not None and wire.open else await self._connect()

    async def _send(self, wire: Wire, command: Command, timeout: float, blocks: float) -> Any:
        """Once, and to where an ASK sends this one command."""
        try:
            return await self._answer(wire, wire.send(command), timeout, blocks)
        except ReplyError as error:
            if error.code != "ASK" or not self._route.cluster:
                raise
            asked = error
        return await self._ask(asked, command, timeout)

    async def _ask(self, error: ReplyError, command: Command, timeout: float) -> Any:
        """Send this one command to where an ASK points."""
        detour = await self._route.detour(str(error).split(" ")[2], self._timeout)
        self._detours.add(detour)
        try:
            asking, reply = detour.send_many((("ASKING",), command))
            await detour.answer(asking, timeout)
            return await detour.answer(reply, timeout)
        finally:
            self._detours.discard(detour)
            detour.abort("the detour is over")

    async def _answer(
        self, wire: Wire, future: asyncio.Future[Any], timeout: float, blocks: float = 0.0
    ) -> Any:
        """As `Wire.answer`. A server that was replaced while it was silent is not waited for."""
        if future.done() or not self._route.moves:
            return await wire.answer(future, timeout)
        timer = asyncio.get_running_loop().call_later(blocks + _SILENCE, self._doubt, wire, future)
        try:
            return await wire.answer(future, timeout)
        except LostReplyError:
            self._route.forget(wire.name)
            raise
        finally:
            timer.cancel()

    def _doubt(self, wire: Wire, future: asyncio.Future[Any]) -> None:
        task = asyncio.ensure_future(self._ask_around(wire, future))
        self._doubts.add(task)
        task.add_done_callback(self._doubts.discard)

    async def _ask_around(self, wire: Wire, future: asyncio.Future[Any]) -> None:
        """A server that stands still, or that the network has swallowed, keeps the connection open."""
        while not future.done() and not self._shut:
            try:
                if await self._route.replaced(wire.name, self._timeout):
                    wire.abort("it was silent and another server has taken its place")
                    return
            except BrokerError:
                pass  # Nobody knows; the time of the command itself still ends the wait.
            await asyncio.wait((future,), timeout=_SILENCE)

    def _turn(self, error: ReplyError, wire: Wire) -> bool:
        """What came over this connection says to ask another server. True when it is known which, so that
        there is no need to wait."""
        code, parts = error.code, str(error).split(" ")
        if code == "MOVED" and self._route.cluster and len(parts) >= 3:
            self._route.moved(parts[2])
            self._leave(wire)
            return True
        # A slot on its way stays where it is until the last key has gone.
        if code == "READONLY" or (code in LATER and code != "TRYAGAIN" and self._route.moves):
            self._route.forget(wire.name)
            self._leave(wire)
        return False

    def _leave(self, wire: Wire) -> None:
        """Use another connection from now on; answers that are still due on this one are let in."""
        if self._wire is wire:
            self._wire = None
        wire.retire()
