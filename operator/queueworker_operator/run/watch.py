"""Watches: which QueueWorkers something was reported about. Decisions are made from a look, never from an
event.

Each kind is followed from its newest version on, through cuts and refusals, without end. Where the way back
to what was missed is lost, a list is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from queueworker_operator.api.names import LABEL_WORKER
from queueworker_operator.apiserver import (
    ApiError,
    ApiServer,
    Body,
    GoneError,
    UnavailableError,
    deployments,
    pods,
    queueworkers,
)

log = logging.getLogger(__name__)

#: Told the namespace and name of a QueueWorker that changed, or whose worker did.
Report = Callable[[str, str], None]

#: Seconds before the next try, twice as long after each further failure, with jitter.
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
#: A stream that lasted longer has worked.
_WORKED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Followed:
    kind: str
    path: str
    #: Empty for QueueWorkers themselves.
    label: str = ""

    def name(self, metadata: Body) -> str:
        """The QueueWorker that an object belongs to."""
        labels = metadata.get("labels") or {}
        return str(labels.get(self.label, "") if self.label else metadata["name"])


class Watches:
    """Follows QueueWorkers, and the Deployments and pods of workers, while `run` runs.

    `missed` is called when something may have happened that `report` was not told: list everything then.
    """

    def __init__(
        self,
        api: ApiServer,
        namespaces: tuple[str, ...],
        report: Report,
        missed: Callable[[], None],
        *,
        first_wait: float = FIRST_WAIT,
    ) -> None:
        self._api, self._report, self._missed, self._first_wait = api, report, missed, first_wait
        self._followed = [
            one
            for namespace in namespaces or ("",)
            for one in (
                _Followed("QueueWorkers", queueworkers(namespace)),
                _Followed("Deployments", deployments(namespace), LABEL_WORKER),
                _Followed("pods", pods(namespace), LABEL_WORKER),
            )
        ]
        self._unheard = {one.path for one in self._followed}
        self._heard = asyncio.Event()
        self._awaited = True

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for one in self._followed:
                group.create_task(self._follow(one), name=f"watching {one.path}")

    async def begun(self, seconds: float) -> None:
        """Wait, before the first list, until nothing that changes after it is missed; so long at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._heard.wait(), seconds)
        self._awaited = False

    async def _follow(self, one: _Followed) -> None:
        """One kind, without end."""
        loop = asyncio.get_running_loop()
        version, told, failures = "", "", 0
        while True:
            began, wait = loop.time(), 0.0
            try:
                if not version:
                    version = await self._api.version(one.path, one.label)
                    self._listen(one)
                async with self._api.watch(one.path, version, one.label) as events:
                    if told:
                        log.info("%s are watched again", one.kind)
                        told = ""
                    async for kind, body in events:
                        version = str(body["metadata"]["resourceVersion"])
                        if kind != "BOOKMARK" and (name := one.name(body["metadata"])):
                            self._report(str(body["metadata"]["namespace"]), name)
                text = "the server ended it at once"
            except GoneError:
                version, text = "", "its version is gone"
            except UnavailableError as error:
                text, wait = str(error), error.wait_seconds
            except ApiError as error:
                version, text = "", f"{error.status} {error.reason}: {error.message}"
            if loop.time() - began >= _WORKED_SECONDS:
                failures = 0
                continue
            failures += 1
            # One cut, or one version that is too old, is nothing to tell.
            if failures > 1 and text != told:
                log.warning("%s are not watched, lists go on: %s", one.kind, text)
                told = text
            if failures > 1 or version:
                exponential = self._first_wait * 2.0 ** min(failures - 1, 16)
                await asyncio.sleep(max(wait, min(exponential, LONGEST_WAIT) * (0.5 + random.random() / 2)))

    def _listen(self, one: _Followed) -> None:
        """What happens to this kind after now is heard of."""
        self._unheard.discard(one.path)
        if not self._unheard:
            self._heard.set()
        if not self._awaited:
            self._missed()
