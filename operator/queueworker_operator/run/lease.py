"""One writer at a time: a Lease, whose number of transitions is the epoch of whoever holds it.

The holder renews well within the time after which others may take over, and stops acting before that time is
up, by its own clock: between two holders there is a gap in which nobody acts. A holder that was stopped in
the middle of a request cannot know; what it still sends is refused, since its successor has marked the
children with its epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from queueworker_operator.apiserver import (
    AlreadyExistsError,
    ApiError,
    ApiServer,
    Body,
    ConflictError,
    UnavailableError,
    leases,
)

log = logging.getLogger(__name__)

#: Unrenewed for this long, by the clock of whoever watches, anybody may take the Lease.
DURATION_SECONDS = 15
#: Unrenewed for this long, the holder stops acting.
RENEW_DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0


class LeaseLostError(Exception):
    """This process may not write any more."""


class Lease:
    """One Lease, seen from one candidate. `clock` is monotonic, in seconds; `wall` is only written, never
    compared.
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._path = api, leases(namespace, name)
        self._collection = leases(namespace)
        self._namespace, self._name, self._identity = namespace, name, identity
        self._clock, self._wall = clock, wall
        self._held_until = float("-inf")
        self._epoch = 0
        self._seen: tuple[str, float] = ("", 0.0)
        self._lost = asyncio.Event()
        self.last_answer = float("-inf")

    @property
    def held(self) -> bool:
        """Whether this process may write now."""
        return self._clock() < self._held_until

    @property
    def epoch(self) -> int:
        """How often the Lease had changed hands when this process got it."""
        return self._epoch

    def permit(self) -> None:
        """Raise LeaseLostError unless this process may write now."""
        if not self.held:
            raise LeaseLostError(f"the Lease {self._namespace}/{self._name} is not held any more")

    def give_up(self) -> None:
        """Somebody with a later epoch acts: stop at once."""
        self._held_until = float("-inf")
        self._lost.set()

    async def acquire(self) -> None:
        """Wait until this process holds the Lease."""
        self._lost.clear()
        shown = ""
        while True:
            started = self._clock()
            try:
                holder = await self._try_to_take(started)
            except (ConflictError, AlreadyExistsError):
                await asyncio.sleep(RETRY_SECONDS / 10)
                continue
            except (UnavailableError, ApiError) as error:
                log.warning("the Lease cannot be read or taken: %s", error)
                holder = shown
            if self.held:
                log.info("holds the Lease", extra={"lease": self._name, "epoch": self._epoch})
                return
            if holder != shown:
                log.info("waits for the Lease", extra={"lease": self._name, "holder": holder})
                shown = holder
            await asyncio.sleep(RETRY_SECONDS)

    async def keep(self) -> None:
        """Renew until the Lease is lost; returns then."""
        while not self._lost.is_set():
            try:
                await asyncio.wait_for(self._lost.wait(), RETRY_SECONDS)
            except TimeoutError:
                pass
            started = self._clock()
            try:
                async with asyncio.timeout(max(0.1, self._held_until - started)):
                    await self._renew(started)
            except (UnavailableError, ApiError, TimeoutError) as error:
                log.warning("the Lease was not renewed: %s", error or "no answer in time")
            if not self.held:
                self.give_up()

    async def release(self) -> None:
        """Let the next one in at once. A failure is not important: the Lease runs out."""
        if not self.held:
            return
        self._held_until = float("-inf")
        try:
            body = await self._api.get(self._path)
            if body["spec"].get("holderIdentity") == self._identity:
                body["spec"].update(holderIdentity="", leaseDurationSeconds=1, renewTime=self._now())
                await self._api.replace(self._path, body)
        except (UnavailableError, ApiError) as error:
            log.warning("the Lease was not released, it runs out in %d s: %s", DURATION_SECONDS, error)

    async def _try_to_take(self, started: float) -> str:
        body = await self._api.find(self._path)
        self.last_answer = self._clock()
        if body is None:
            fresh: Body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": {**self._mine(), "leaseTransitions": 1, "acquireTime": self._now()},
            }
            self._got(await self._api.create(self._collection, fresh), started)
            return self._identity
        spec = body["spec"]
        holder = spec.get("holderIdentity") or ""
        # Ours from before: the same pod runs one operator at a time, so the one that held it is gone.
        if holder and holder != self._identity and not self._has_run_out(body):
            return str(holder)
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        spec.update(self._mine(), leaseTransitions=transitions, acquireTime=self._now())
        self._got(await self._api.replace(self._path, body), started)
        return self._identity

    def _has_run_out(self, body: Body) -> bool:
        """Whether it stood still for its whole duration while we watched. Times of other clocks decide
        nothing.
        """
        version = str(body["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        duration = int(body["spec"].get("leaseDurationSeconds") or DURATION_SECONDS)
        return self._clock() - self._seen[1] > duration

    async def _renew(self, started: float) -> None:
        body = await self._api.get(self._path)
        spec = body["spec"]
        if spec.get("holderIdentity") != self._identity or spec.get("leaseTransitions") != self._epoch:
            log.error("the Lease was taken", extra={"holder": spec.get("holderIdentity")})
            self.give_up()
            return
        spec.update(self._mine())
        self._got(await self._api.replace(self._path, body), started)

    def _got(self, body: Body, started: float) -> None:
        self._epoch = int(body["spec"]["leaseTransitions"])
        self._held_until = started + RENEW_DEADLINE_SECONDS
        self.last_answer = self._clock()

    def _mine(self) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": self._now(),
        }

    def _now(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
