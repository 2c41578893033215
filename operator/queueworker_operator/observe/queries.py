"""What a Prometheus says of the totals in a durable store: one instant query, bounded in time and length."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp

from queueworker_operator.api.audits import AuditQuery, shown
from queueworker_operator.api.gates import AnalysisStatus, AuditStatus
from queueworker_operator.api.sentences import inside
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.plan.audit import (
    NOT_AUDITED,
    AuditBroken,
    AuditFact,
    AuditMeasured,
    AuditRuns,
    placeholders,
)

#: Seconds that a pass waits for an answer; what comes later counts for the next pass.
PATIENCE = 0.5
_ANSWER = aiohttp.ClientTimeout(total=10.0)
#: A longer answer is not that of one number.
_LONGEST = 65536


class NoNumberError(ValueError):
    """What was answered is not one number. The text says what it is."""


@dataclass(frozen=True, slots=True)
class _Asked:
    name: str
    task: asyncio.Task[AuditFact]


class QueryAudits:
    """`clock` gives aware times. Each audit asks once. `close` ends what is under way."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._asked: dict[str, _Asked] = {}

    async def latest(
        self, key: str, resource: QueueWorker, analysis: AnalysisStatus, query: AuditQuery
    ) -> AuditFact:
        """What the answer is, once it is due. `key` names the resource. Never raises."""
        audit, stable = analysis.audit, resource.status.stable
        if audit is None or stable is None or self._clock() < audit.due_at:
            return NOT_AUDITED
        asked = self._asked.get(key)
        if asked is None or asked.name != audit.name:
            self.forget(key)
            text = query.filled(placeholders(analysis.revision, stable.revision, analysis.began, audit.ended))
            task = asyncio.create_task(_ask(audit, query.url, text))
            asked = self._asked[key] = _Asked(audit.name, task)
        await asyncio.wait({asked.task}, timeout=PATIENCE)
        return asked.task.result() if asked.task.done() else AuditRuns(audit.name)

    def forget(self, key: str) -> None:
        """Its analysis is over, or it is gone."""
        asked = self._asked.pop(key, None)
        if asked is not None:
            asked.task.cancel()

    async def close(self) -> None:
        """End what is under way."""
        tasks = [asked.task for asked in self._asked.values()]
        for key in list(self._asked):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(audit: AuditStatus, url: str, query: str) -> AuditFact:
    where = f"{url.rstrip('/')}/api/v1/query"
    try:
        async with (
            aiohttp.ClientSession(timeout=_ANSWER) as session,
            session.get(where, params={"query": query}, allow_redirects=False) as answer,
        ):
            status, raw = answer.status, await answer.content.read(_LONGEST)
        return AuditMeasured(audit.name, number_in(status, raw))
    except NoNumberError as error:
        return AuditBroken(audit.name, f"{where} {inside(error)}. Asked was: {query}")
    except TimeoutError:
        return AuditBroken(audit.name, f"{where} did not answer within {_ANSWER.total:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return AuditBroken(audit.name, f"{where} cannot be asked: {error or type(error).__name__}")


def number_in(status: int, raw: bytes) -> float:
    """The one number of an answer. Raises NoNumberError. Of what is no answer of a Prometheus nothing is
    quoted: the URL may lead anywhere."""
    try:
        body: Any = json.loads(raw)
        succeeded = body["status"] == "success"
        error = str(body.get("error", ""))
        data = body["data"] if succeeded else {}
        kind, result = data.get("resultType"), data.get("result")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NoNumberError(f"answered with status {status}, and not as a Prometheus does") from None
    if not succeeded:
        raise NoNumberError(f"answered with status {status}: {shown(error.encode())}")
    if kind == "vector" and isinstance(result, list):
        if len(result) != 1:
            raise NoNumberError(f"found {len(result)} series where one is asked for")
        result = result[0].get("value") if isinstance(result[0], dict) else None
    elif kind != "scalar":
        raise NoNumberError(f"answered with a {shown(str(kind).encode())} where one number is asked for")
    try:
        number = float(result[1])  # type: ignore[index]
    except (ValueError, TypeError, IndexError, KeyError):
        raise NoNumberError("answered with something that is no number") from None
    if not math.isfinite(number):
        raise NoNumberError(f"answered with {number}")
    return number
