"""What a Prometheus says of the totals in a durable store: one instant query, bounded in time and length."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import math
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aiohttp

from queueworker_operator.api.audits import AuditQuery, shown
from queueworker_operator.api.credentials import SecretFile
from queueworker_operator.api.gates import AnalysisStatus, AuditStatus
from queueworker_operator.api.sentences import inside
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.observe.bodies import BodyTooLongError, whole
from queueworker_operator.observe.certificates import UnusableCertificateError, show_certificate
from queueworker_operator.observe.masks import Mask
from queueworker_operator.observe.secrets import Files
from queueworker_operator.plan.audit import (
    NOT_AUDITED,
    AuditBroken,
    AuditFact,
    AuditMeasured,
    AuditRefused,
    AuditRuns,
    placeholders,
)

#: Seconds that a pass waits for an answer; what comes later counts for the next pass.
PATIENCE = 0.5
_ANSWER = aiohttp.ClientTimeout(total=10.0)
#: A longer answer is not that of one number.
_LONGEST = 65536
#: Gives what Secrets hold, or what is wrong with them.
ReadFiles = Callable[[Iterable[SecretFile]], Awaitable[Files | str]]


class NoNumberError(ValueError):
    """What was answered is not one number. The text says what it is."""


@dataclass(frozen=True, slots=True)
class _Access:
    """Not to be shown."""

    headers: Mapping[str, str] = field(repr=False)
    #: True trusts whom the system trusts.
    tls: ssl.SSLContext | bool
    #: What an answer may repeat of it.
    mask: Mask


@dataclass(frozen=True, slots=True)
class _Asked:
    name: str
    task: asyncio.Task[AuditFact]


class QueryAudits:
    """`clock` gives aware times. Each audit asks once. `close` ends what is under way."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._asked: dict[str, _Asked] = {}
        #: By resource: the analysis whose Secrets were found in order.
        self._accepted: dict[str, tuple[datetime, str]] = {}

    async def latest(
        self,
        key: str,
        resource: QueueWorker,
        analysis: AnalysisStatus,
        query: AuditQuery,
        read: ReadFiles,
    ) -> AuditFact:
        """What the answer is, once it is due; before, whether its Secrets have what it takes. `key` names the
        resource, `read` gives what Secrets hold or what is wrong with them. Raises what that raises."""
        audit, stable = analysis.audit, resource.status.stable
        if audit is None:
            return await self._tried(key, analysis, query, read)
        if stable is None or self._clock() < audit.due_at:
            return NOT_AUDITED
        asked = self._asked.get(key)
        if asked is None or asked.name != audit.name:
            self.forget(key)
            access = await _access(query, read, self._clock())
            if isinstance(access, str):
                return AuditBroken(audit.name, f"cannot be asked: {access}")
            text = query.filled(placeholders(analysis.revision, stable.revision, analysis.began, audit.ended))
            task = asyncio.create_task(_ask(audit, query, access, text))
            asked = self._asked[key] = _Asked(audit.name, task)
        await asyncio.wait({asked.task}, timeout=PATIENCE)
        return asked.task.result() if asked.task.done() else AuditRuns(audit.name)

    async def _tried(
        self,
        key: str,
        analysis: AnalysisStatus,
        query: AuditQuery,
        read: ReadFiles,
    ) -> AuditFact:
        """Once for each analysis: nobody is to measure for long for a Secret that is not there."""
        mark = analysis.began_at, analysis.settings
        if self._accepted.get(key) != mark:
            access = await _access(query, read, self._clock())
            if isinstance(access, str):
                return AuditRefused(access)
            self._accepted[key] = mark
        return NOT_AUDITED

    def forget(self, key: str) -> None:
        """Its analysis is over, or it is gone."""
        self._accepted.pop(key, None)
        asked = self._asked.pop(key, None)
        if asked is not None:
            asked.task.cancel()

    async def close(self) -> None:
        """End what is under way."""
        tasks = [asked.task for asked in self._asked.values()]
        for key in list(self._asked):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)


async def _access(query: AuditQuery, read: ReadFiles, now: datetime) -> _Access | str:
    """How to sign in and whom to trust, or why nobody can, without a secret."""
    found = await read(query.files())
    if isinstance(found, str):
        return found
    files = dict(found)
    headers = {}
    if (raw := files.get("token")) is not None:
        token = raw.strip()
        if not re.fullmatch(rb"[!-~]+", token):
            return f"{_of(query, 'token')} is no token: one line of printable ASCII characters"
        headers["Authorization"] = f"Bearer {token.decode()}"
    if "username" in files:
        user, password = (files[key].rstrip(b"\r\n") for key in ("username", "password"))
        if b":" in user:
            return f"{_of(query, 'username')} has a colon, which would end it: name another user"
        headers["Authorization"] = f"Basic {base64.b64encode(user + b':' + password).decode()}"
    sent = [value.partition(" ")[2] for value in headers.values()]
    mask = Mask.of([*(files[key] for key in ("token", "password") if key in files), *sent])
    if not files.keys() & {"ca.crt", "tls.crt"}:
        return _Access(headers, True, mask)
    authority = files.get("ca.crt")
    try:
        tls = ssl.create_default_context(cadata=None if authority is None else authority.decode("ascii"))
    except (ValueError, ssl.SSLError):
        return f"{_of(query, 'ca.crt')} is no certificate as PEM: store those of the authority"
    if "tls.crt" in files:
        try:
            show_certificate(tls, files["tls.crt"], files["tls.key"], now)
        except UnusableCertificateError as error:
            return f"{_of(query, error.file)} {error}"
    return _Access(headers, tls, mask)


def _of(query: AuditQuery, file: str) -> str:
    """What a Secret holds, by the field that names it."""
    one = next(one for one in query.files() if one.file == file)
    return f"{one.path}: what the Secret {one.secret} has under {one.key}"


async def _ask(audit: AuditStatus, query: AuditQuery, access: _Access, text: str) -> AuditFact:
    where = f"{query.url.rstrip('/')}/api/v1/query"
    try:
        async with (
            aiohttp.ClientSession(timeout=_ANSWER) as session,
            session.get(
                where,
                params={"query": text},
                headers=access.headers,
                ssl=access.tls,
                allow_redirects=False,
            ) as answer,
        ):
            status = answer.status
            if status in (401, 403):
                told = f"{where} answered with status {status}: {_forbidden(query, status)}"
                return AuditBroken(audit.name, told)
            return AuditMeasured(audit.name, number_in(status, await whole(answer, _LONGEST)))
    except (NoNumberError, BodyTooLongError) as error:
        return AuditBroken(audit.name, f"{where} {access.mask.hide(str(error))}. Asked was: {text}")
    except TimeoutError:
        return AuditBroken(audit.name, f"{where} did not answer within {_ANSWER.total:g} s")
    except aiohttp.ClientConnectorCertificateError as error:
        return AuditBroken(
            audit.name,
            f"{where} shows a certificate that is not trusted ({inside(error.certificate_error)}): name the "
            "authority's by prometheus.tls.ca",
        )
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if query.url.startswith("https://") and _ends_the_connection(error):
            return AuditBroken(audit.name, f"{where} ended the encrypted connection: {_unshown(query)}")
        return AuditBroken(audit.name, f"{where} cannot be asked: {error or type(error).__name__}")


def _ends_the_connection(error: BaseException) -> bool:
    """Whether that is how a server refuses a client's certificate. By TLS 1.3 it does so after the client's
    part of the handshake, and what it says of it is often lost with the connection."""
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "_ALERT_" in str(error.os_error)
    cut = isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)
    return isinstance(error, aiohttp.ServerDisconnectedError) or cut


def _unshown(query: AuditQuery) -> str:
    if query.tls is None or query.tls.certificate is None:
        return "it may want to see a client's certificate: name a Secret by prometheus.tls.certificate"
    return (
        f"it may not accept the client's certificate; look at {_of(query, 'tls.crt')}, and whether its "
        "authority is trusted there"
    )


def _forbidden(query: AuditQuery, status: int) -> str:
    """Who is refused, and the way out. Of the answer nothing is quoted: it may repeat what was sent."""
    if query.credentials is None:
        return "it wants to know who asks: name a Secret by prometheus.credentials"
    signing = ("token", "username", "password")
    used = sorted({f"{one.path} (the Secret {one.secret})" for one in query.files() if one.file in signing})
    what = "it does not accept" if status == 401 else "this query is not allowed to"
    return f"{what} {', '.join(used)}: correct what is stored there, or name another Secret"


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
