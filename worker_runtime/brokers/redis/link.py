"""A connection that comes back: it connects when needed, follows the cluster, and never sends a command
twice unless the server said that it did not run it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from worker_runtime.brokers.base import BrokerError, BrokerUnavailableError
from worker_runtime.brokers.redis.faults import ELSEWHERE, LATER, explained
from worker_runtime.brokers.redis.route import Route
from worker_runtime.brokers.redis.scripts import Call
from worker_runtime.brokers.redis.wire import Command, LostReplyError, NotSentError, ReplyError, Wire

_REDIRECTIONS = 5
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 0.5


class Link:
    """`timeout` is how long one command may take, in seconds."""

    def __init__(self, route: Route, timeout: float) -> None:
        self._route = route
        self._timeout = timeout
        self._wire: Wire | None = None
        self._connecting = asyncio.Lock()
        self._shut = False

    @property
    def name(self) -> str:
        return self._route.name

    async def call(
        self, command: Command, doing: str, *, timeout: float | None = None, patience: float = 0.0
    ) -> Any:
        """The reply to one command. `doing` completes "Redis cannot ..." in error texts.

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
            try:
                wire = self._wire
                if wire is None or not wire.open:
                    wire = await self._connect()
                return await wire.call(command, timeout)
            except LostReplyError:
                self._route.forget()
                raise
            except NotSentError as error:
                fault = error
            except ReplyError as error:
                if error.code == "NOSCRIPT":
                    raise
                if error.code not in LATER and error.code not in ELSEWHERE:
                    raise explained(error, self.name, doing) from None
                if error.code == "ASK" and self._route.cluster:
                    return await self._ask(error, command, doing, timeout)
                redirected = self._turn(error)
                if redirected and redirections < _REDIRECTIONS:
                    redirections += 1
                    continue
                unavailable = explained(error, self.name, doing)
                if not isinstance(unavailable, BrokerUnavailableError):
                    raise unavailable from None
                fault = unavailable
            if self._shut or loop.time() + pause > until:
                raise fault
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

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
            wire = self._wire
            if wire is None or not wire.open:
                wire = await self._connect()
            replies: list[Any] = []
            for future in wire.send_many(commands):
                try:
                    replies.append(await wire.answer(future, self._timeout))
                except ReplyError as error:
                    replies.append(error)
            refusals = [one for one in replies if isinstance(one, ReplyError)]
            # Only when not one of them ran is the whole asked for elsewhere.
            if not refusals or len(refusals) < len(replies) or refusals[0].code not in ELSEWHERE:
                return replies
            fault = explained(refusals[0], self.name, doing)
            if not self._turn(refusals[0]):
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
            if not self._turn(elsewhere):
                break
        raise fault

    def drop(self) -> None:
        """Give the connection up at once. The next call makes a new one."""
        if self._wire is not None:
            self._wire.abort("the connection was dropped here")
            self._wire = None

    def hang_up(self) -> None:
        """Take no more commands, and tell the server so: it ends a blocked one and forgets this client."""
        self._shut = True
        if self._wire is not None:
            self._wire.hang_up()

    async def close(self, timeout: float = 1.0) -> None:
        """After this no command of ours can still begin on the server, if it answers within `timeout`."""
        self._shut = True
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.hang_up()
            await wire.closed(timeout)
            wire.abort("the connection was closed here")

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

    def _turn(self, error: ReplyError) -> bool:
        """Prepare to ask another server; True when it is known which, so that there is no need to wait."""
        code, parts = error.code, str(error).split(" ")
        if code == "MOVED" and self._route.cluster and len(parts) >= 3:
            self._route.moved(parts[2])
            self._leave()
            return True
        if code == "READONLY" or (code in LATER and self._route.cluster):
            self._route.forget()
            self._leave()
        return False

    def _leave(self) -> None:
        """Use another connection from now on; answers that are still due on this one are let in."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.retire()

    async def _ask(self, error: ReplyError, command: Command, doing: str, timeout: float) -> Any:
        wire = await self._route.detour(str(error).split(" ")[2], self._timeout)
        try:
            asking, reply = wire.send_many((("ASKING",), command))
            await wire.answer(asking, timeout)
            return await wire.answer(reply, timeout)
        except ReplyError as refused:
            if refused.code == "NOSCRIPT":
                raise
            raise explained(refused, wire.name, doing) from None
        finally:
            wire.abort("the detour is over")
