"""What a Prometheus is asked and as whom, and what becomes of whatever answers at its URL. That is a server
here which answers as one would: a real one is nothing that a checkout installs."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, strategies as st

from queueworker_operator.api.audits import AuditQuery
from queueworker_operator.api.credentials import SecretFile
from queueworker_operator.api.gates import AnalysisStatus, AuditStatus, BooksStatus, Counts, Gate
from queueworker_operator.observe.certificates import validity
from queueworker_operator.observe.queries import NoNumberError, QueryAudits, number_in
from queueworker_operator.observe.secrets import Files, files_in
from queueworker_operator.plan.audit import (
    NOT_AUDITED,
    AuditBroken,
    AuditFact,
    AuditMeasured,
    AuditRefused,
    AuditRuns,
    refused as of_refused,
)
from tests.operator.resources import ANY, START, V1, V2, after, on
from tests.services import free_port

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of something that answers as a Prometheus, or a proxy before it, would be asked."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    try:
        yield f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {}, "value": [1700000000.5, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def analysis(name: str = "a", due: float = 0) -> AnalysisStatus:
    ended = BooksStatus(at=after(60), canary=Counts(committed=900), stable=Counts())
    return AnalysisStatus(
        revision=V2.name,
        settings="s",
        began=BooksStatus(at=START, canary=Counts(committed=100), stable=Counts()),
        began_at=START,
        audit=AuditStatus(name=name, due_at=after(due), ended=ended),
    )


RESOURCE = replace(ANY, status=on("v1"))
QUERY = 'lost{canary="$canary",stable="$stable"} + $committed + $committedEver'


#: As `queueworker up` has them, by name and key.
SECRETS = {
    "prom": {"token": "s3cret\n", "username": "me", "password": "s3cret:ö\n", "two": "s3cret s3cret"},
    "bad": {"username": "me:s3cret", "password": "s3cret", "ca.crt": "s3cret"},
}


async def read(files: Iterable[SecretFile]) -> Files | str:
    return files_in(SECRETS, files)


async def asked(audits: QueryAudits, url: str, of: AnalysisStatus | None = None, **more: Any) -> AuditFact:
    """What is known when it has answered."""
    query = AuditQuery.model_validate({"url": url, "query": QUERY, **more})
    async with asyncio.timeout(60):
        found = await audits.latest("k", RESOURCE, of or analysis(), query, read)
        while isinstance(found, AuditRuns):  # each time it waits for a moment
            found = await audits.latest("k", RESOURCE, of or analysis(), query, read)
    return found


async def test_it_is_asked_once_with_what_it_has_to_know() -> None:
    got: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/api/v1/query"
        got.append(request.query["query"])
        return web.json_response(vector("3"))

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        for _ in range(3):
            assert await asked(audits, url) == AuditMeasured("a", 3.0)
        assert got == [f'lost{{canary="{V2.name}",stable="{V1.name}"}} + 800 + 900']
        assert await asked(audits, url, analysis("b")) == AuditMeasured("b", 3.0)
        assert len(got) == 2
        assert await audits.latest(
            "k", RESOURCE, analysis("c", due=71), AuditQuery(url=url, query="x"), read
        ) == (NOT_AUDITED), "not before it is due"
    await audits.close()


async def test_whoever_takes_its_time_holds_nobody_up_and_is_not_left_behind() -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        begun.set()
        await never.wait()
        return web.json_response(vector("0"))

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        assert await audits.latest(
            "k", RESOURCE, analysis(), AuditQuery(url=url, query="x"), read
        ) == AuditRuns("a")
        await asyncio.wait_for(begun.wait(), 60)
        await asyncio.wait_for(audits.close(), 60)


async def test_an_answer_in_two_pieces_is_read_whole() -> None:
    raw, rest = json.dumps(vector("3")).encode(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        pieces = web.StreamResponse()
        await pieces.prepare(request)
        await pieces.write(raw[:20])
        await rest.wait()
        await pieces.write(raw[20:])
        return pieces

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        half = await audits.latest("k", RESOURCE, analysis(), AuditQuery(url=url, query=QUERY), read)
        rest.set()
        assert half == AuditRuns("a")
        assert await asked(audits, url) == AuditMeasured("a", 3.0)
    await audits.close()


async def test_an_endless_answer_is_refused() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        pieces = web.StreamResponse()
        await pieces.prepare(request)
        while True:
            await pieces.write(b" " * 4096)

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        found = await asked(audits, url)
    await audits.close()
    assert isinstance(found, AuditBroken)
    assert "more than 65536 bytes" in found.message


async def test_who_does_not_answer_is_told() -> None:
    audits = QueryAudits(lambda: after(70))
    found = await asked(audits, f"http://127.0.0.1:{free_port()}")
    assert isinstance(found, AuditBroken)
    assert "cannot be asked" in found.message

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/secret")

    async with answering(elsewhere) as url:
        found = await asked(audits, url, analysis("b"))
    assert isinstance(found, AuditBroken)
    assert "status 302" in found.message
    await audits.close()


TOKEN = {"credentials": {"token": {"name": "prom"}}}
LOGIN = {"credentials": {"login": {"name": "prom"}}}


@pytest.mark.parametrize(
    ("how", "scheme", "given"), [(TOKEN, "Bearer", b"s3cret"), (LOGIN, "Basic", "me:s3cret:ö".encode())]
)
async def test_it_signs_in_with_what_a_secret_has(how: dict[str, Any], scheme: str, given: bytes) -> None:
    got: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        got.append(request.headers["Authorization"])
        return web.json_response(vector("3"))

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        assert await asked(audits, url, **how) == AuditMeasured("a", 3.0)
    await audits.close()
    (told,) = got
    word, _, what = told.partition(" ")
    assert word == scheme
    assert (what.encode() if scheme == "Bearer" else base64.b64decode(what)) == given


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("how", [{}, TOKEN, LOGIN])
async def test_who_is_refused_is_told_without_a_secret(status: int, how: dict[str, Any]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        said = {"status": "error", "errorType": "s3cret", "error": str(dict(request.headers))}
        return web.json_response(said, status=status)

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        found = await asked(audits, url, **how)
    await audits.close()
    assert isinstance(found, AuditBroken)
    assert f"status {status}" in found.message
    assert ("the Secret prom" in found.message) == bool(how)
    assert "prometheus.credentials" in found.message
    assert "s3cret" not in repr(found)
    assert "Basic" not in found.message, "nor what can be made of one"


@pytest.mark.parametrize("how", [TOKEN, LOGIN])
async def test_an_error_that_repeats_what_was_sent_is_told_without_it(how: dict[str, Any]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        said = f"no tenant for {request.headers['Authorization']}"
        return web.json_response({"status": "error", "error": said}, status=400)

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        found = await asked(audits, url, **how)
    await audits.close()
    assert isinstance(found, AuditBroken)
    scheme = "Bearer" if how is TOKEN else "Basic"
    assert f"status 400: no tenant for {scheme} ***" in found.message


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ({"credentials": {"token": {"name": "none"}}}, "Secret none of the file, which is not there"),
        (
            {"credentials": {"token": {"name": "bad"}}},
            "no value under token (read ca.crt, pass",
        ),
        ({"credentials": {"token": {"name": "prom", "key": "two"}}}, "has under two is no token"),
        ({"credentials": {"login": {"name": "bad"}}}, "has under username has a colon"),
        ({"tls": {"ca": {"name": "bad"}}}, "has under ca.crt is no certificate"),
        ({"tls": {"ca": {"name": "prom", "key": "password"}}}, "has under password is no certificate"),
    ],
)
async def test_a_secret_that_is_not_as_it_should_be_is_told_before_anything_is_measured(
    how: dict[str, Any], part: str
) -> None:
    query = AuditQuery.model_validate({"url": "https://nowhere.invalid", "query": "x", **how})
    audits = QueryAudits(lambda: after(70))
    measured = analysis().model_copy(update={"audit": None})
    refused = await audits.latest("k", RESOURCE, measured, query, read)
    assert isinstance(refused, AuditRefused)
    assert part in refused.message
    broken = await audits.latest("k", RESOURCE, analysis(), query, read)
    assert isinstance(broken, AuditBroken), "and where it is gone later"
    assert part in broken.message
    assert "s3cret" not in f"{refused}{broken}"
    judged = of_refused(Gate.model_validate({"type": "UsageAccounting", "prometheus": query}), refused)
    assert "its Prometheus cannot be asked" in judged.message


async def test_a_secret_is_looked_at_once_for_each_analysis() -> None:
    looks: list[str] = []

    async def counted(files: Iterable[SecretFile]) -> Files | str:
        looks.extend(one.file for one in files)
        return files_in(SECRETS, files)

    query = AuditQuery.model_validate({"url": "https://nowhere.invalid", "query": "x", **TOKEN})
    audits = QueryAudits(lambda: after(70))
    measured = analysis().model_copy(update={"audit": None})
    for _ in range(3):
        assert await audits.latest("k", RESOURCE, measured, query, counted) == NOT_AUDITED
    assert looks == ["token"]
    later = measured.model_copy(update={"began_at": after(1)})
    await audits.latest("k", RESOURCE, later, query, counted)
    assert looks == ["token"] * 2


@pytest.fixture
def signed(tmp_path: Path) -> tuple[Path, Path]:
    """A key and a certificate that vouches for itself."""
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return key, certificate


async def test_an_encrypted_connection_is_verified_by_the_authority_that_is_named(
    signed: tuple[Path, Path],
) -> None:
    key, certificate = signed
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(vector("0"))

    async def trusting(files: Iterable[SecretFile]) -> Files | str:
        return files_in({"prom": {"ca.crt": certificate.read_text()}}, files)

    audits = QueryAudits(lambda: after(70))
    async with answering(answer, tls) as url:
        unknown = await asked(audits, url)
        assert isinstance(unknown, AuditBroken)
        assert "not trusted" in unknown.message
        assert "prometheus.tls.ca" in unknown.message
        query = AuditQuery.model_validate({"url": url, "query": "x", "tls": {"ca": {"name": "prom"}}})
        async with asyncio.timeout(60):
            found: AuditFact = AuditRuns("b")
            while isinstance(found, AuditRuns):
                found = await audits.latest("k", RESOURCE, analysis("b"), query, trusting)
        assert found == AuditMeasured("b", 0.0)
    await audits.close()


def openssl(*command: str, where: Path) -> None:
    subprocess.run(["openssl", *command], check=True, capture_output=True, cwd=where)


def issue(where: Path, name: str) -> tuple[bytes, bytes]:
    """A client's certificate by the authority in tls.crt and tls.key, and its key."""
    openssl(
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        f"/CN={name}",
        "-keyout",
        f"{name}.key",
        "-out",
        f"{name}.csr",
        where=where,
    )
    openssl(
        "x509",
        "-req",
        "-in",
        f"{name}.csr",
        "-CA",
        "tls.crt",
        "-CAkey",
        "tls.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-out",
        f"{name}.crt",
        where=where,
    )
    return (where / f"{name}.crt").read_bytes(), (where / f"{name}.key").read_bytes()


def now() -> datetime:
    return datetime.now(UTC)


async def test_a_client_shows_its_certificate_where_one_is_required(
    signed: tuple[Path, Path], tmp_path: Path
) -> None:
    key, certificate = signed
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    for one in (key, certificate):
        (strangers / one.name).write_bytes(one.read_bytes())
    own, own_key = issue(tmp_path, "operator")
    openssl(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=strange",
        "-keyout",
        "tls.key",
        "-out",
        "tls.crt",
        where=strangers,
    )
    strange, strange_key = issue(strangers, "stranger")
    secrets = {
        "ca": {"ca.crt": certificate.read_text()},
        "mine": {"tls.crt": own.decode(), "tls.key": own_key.decode()},
        "strange": {"tls.crt": strange.decode(), "tls.key": strange_key.decode()},
    }
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(vector("0"))

    async def of_file(files: Iterable[SecretFile]) -> Files | str:
        return files_in(secrets, files)

    audits = QueryAudits(lambda: max(now(), after(70)))

    async def found(url: str, name: str, shown: str) -> AuditFact:
        trust = {"ca": {"name": "ca"}}
        shows = trust | ({"certificate": {"name": shown}} if shown else {})
        query = AuditQuery.model_validate({"url": url, "query": "x", "tls": shows})
        async with asyncio.timeout(60):
            told: AuditFact = AuditRuns(name)
            while isinstance(told, AuditRuns):
                told = await audits.latest("k", RESOURCE, analysis(name), query, of_file)
        return told

    async with answering(answer, tls) as url:
        assert await found(url, "a", "mine") == AuditMeasured("a", 0.0)
        none = await found(url, "b", "")
        assert isinstance(none, AuditBroken)
        assert "name a Secret by prometheus.tls.certificate" in none.message
        other = await found(url, "c", "strange")
        assert isinstance(other, AuditBroken)
        assert "the Secret strange has under tls.crt" in other.message
        assert "PRIVATE" not in other.message
    await audits.close()


async def test_a_certificate_that_cannot_be_shown_is_told_before_anything_is_measured(
    signed: tuple[Path, Path], tmp_path: Path
) -> None:
    good, key = issue(tmp_path, "good")
    _, other = issue(tmp_path, "other")
    openssl(
        "rsa", "-aes256", "-passout", "pass:s3cret", "-in", "good.key", "-out", "locked.key", where=tmp_path
    )
    locked = (tmp_path / "locked.key").read_bytes()
    cases = [
        ((good, other), "the Secret c has under tls.key is not the key of the certificate"),
        ((good, b"s3cret"), "the Secret c has under tls.key is no private key"),
        ((good, locked), "the Secret c has under tls.key is no private key as PEM without a passphrase"),
        ((b"s3cret", key), "the Secret c has under tls.crt is no certificate"),
        ((good, b""), "Secret c of the file, which has no value under tls.key"),
    ]
    query = AuditQuery.model_validate(
        {"url": "https://nowhere.invalid", "query": "x", "tls": {"certificate": {"name": "c"}}}
    )
    measured = analysis().model_copy(update={"audit": None})
    for (shown, of), part in cases:
        secrets = {"c": {"tls.crt": shown.decode(), "tls.key": of.decode()}}

        async def of_file(
            files: Iterable[SecretFile], secrets: dict[str, dict[str, str]] = secrets
        ) -> Files | str:
            return files_in(secrets, files)

        audits = QueryAudits(now)
        refused = await audits.latest("k", RESOURCE, measured, query, of_file)
        await audits.close()
        assert isinstance(refused, AuditRefused), part
        assert part in refused.message
        assert "prometheus.tls.certificate" in refused.message
        assert "s3cret" not in refused.message


@pytest.mark.parametrize(("days", "part"), [(-1, "is not valid before 2"), (3, "expired at 2")])
async def test_a_certificate_of_another_time_is_told(
    signed: tuple[Path, Path], tmp_path: Path, days: int, part: str
) -> None:
    certificate, key = issue(tmp_path, "client")
    secrets = {"c": {"tls.crt": certificate.decode(), "tls.key": key.decode()}}

    async def of_file(files: Iterable[SecretFile]) -> Files | str:
        return files_in(secrets, files)

    query = AuditQuery.model_validate(
        {"url": "https://nowhere.invalid", "query": "x", "tls": {"certificate": {"name": "c"}}}
    )
    audits = QueryAudits(lambda: now() + timedelta(days=days))
    refused = await audits.latest(
        "k", RESOURCE, analysis().model_copy(update={"audit": None}), query, of_file
    )
    await audits.close()
    assert isinstance(refused, AuditRefused)
    assert f"prometheus.tls.certificate: what the Secret c has under tls.crt {part}" in refused.message


@given(st.binary(max_size=300))
def test_whatever_bytes_are_no_certificate_are_refused(raw: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        validity(raw)


@pytest.mark.parametrize(
    ("status", "answer", "part"),
    [
        (400, {"status": "error", "errorType": "bad_data", "error": "parse error: x"}, "parse error: x"),
        (200, vector(), "0 series"),
        (200, vector("1", "2"), "2 series"),
        (200, vector("NaN"), "nan"),
        (200, vector("+Inf"), "inf"),
        (200, vector("many"), "no number"),
        (200, {"status": "success", "data": {"resultType": "matrix", "result": []}}, "matrix"),
        (200, {"status": "success", "data": {"resultType": "scalar", "result": [1]}}, "no number"),
        (200, {"status": "success"}, "not as a Prometheus"),
        (200, {"secret": "of somebody"}, "not as a Prometheus"),
        (200, ["secret"], "not as a Prometheus"),
    ],
)
def test_what_is_no_number(status: int, answer: object, part: str) -> None:
    with pytest.raises(NoNumberError) as refused:
        number_in(status, json.dumps(answer).encode())
    assert part in str(refused.value)
    assert "secret" not in str(refused.value), "of what is no Prometheus nothing is quoted"


def test_one_number() -> None:
    assert number_in(200, json.dumps(vector("-7.5")).encode()) == -7.5
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [1.5, "4"]}}
    assert number_in(200, json.dumps(scalar).encode()) == 4.0


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "data", "resultType", "result", "value", "error"]), inner
        )
    ),
    max_leaves=10,
)


@given(json_values)
def test_whatever_is_answered_is_a_number_or_told(answer: object) -> None:
    try:
        number_in(200, json.dumps(answer).encode())
    except NoNumberError:
        pass


@given(st.binary(max_size=60))
def test_whatever_bytes_are_answered_are_told(raw: bytes) -> None:
    with pytest.raises(NoNumberError):
        number_in(200, raw)
