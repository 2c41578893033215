"""Signing in at a NATS server by each kind of credentials, and what a URL may say."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import nkeys
import pytest

from tests.brokers.nats_proxy import NatsProxy
from tests.brokers.nats_site import fresh_site
from tests.brokers.site import CALM, PATIENCE, receive, receive_all, settle
from tests.services import EmbeddedNats
from worker_runtime import App
from worker_runtime.brokers.base import (
    Action,
    BrokerError,
    BrokerRefusedError,
    BrokerUnavailableError,
    CredentialsUnusableError,
    Delivery,
    Outcome,
    Presence,
    Settlement,
)
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.nats.address import parse_address, with_credentials
from worker_runtime.brokers.nats.link import Link
from worker_runtime.settings import settings_from

#: The version of the Redis server makes no difference.
pytestmark = pytest.mark.any_server


def new_seed(prefix: int) -> bytes:
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), prefix)
    return seed


def public_of(seed: bytes) -> str:
    key: str = nkeys.from_seed(bytearray(seed)).public_key.decode()
    return key


def token_of(issuer: bytes, subject: bytes, kind: str, **claims: object) -> str:
    """A JWT as NATS reads it."""

    def encoded(value: object) -> str:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    body = {
        "jti": secrets.token_hex(8),
        "iat": int(time.time()),
        "iss": public_of(issuer),
        "sub": public_of(subject),
        "name": kind,
        "nats": {"type": kind, "version": 2, **claims},
    }
    text = f"{encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{encoded(body)}"
    return f"{text}.{encoded(nkeys.from_seed(bytearray(issuer)).sign(text.encode()))}"


async def version_at(url: str) -> tuple[int, ...]:
    link = Link(parse_address(url), 20.0, "test")
    try:
        return (await link.opened()).version
    finally:
        await link.close()


@pytest.fixture(scope="module")
def user_seed() -> bytes:
    return new_seed(nkeys.PREFIX_BYTE_USER)


@pytest.fixture(scope="module")
def guarded(user_seed: bytes) -> Iterator[EmbeddedNats]:
    users = f'{{user: "a b", password: "p@ss/w:rd"}}, {{nkey: {public_of(user_seed)}}}'
    with EmbeddedNats(config=f"authorization {{ users: [{users}] }}") as server:
        yield server


async def test_a_user_with_a_password(guarded: EmbeddedNats) -> None:
    assert await version_at(guarded.url.replace("//", "//a%20b:p%40ss%2Fw%3Ard@")) > (2,)
    for wrong in ("//", "//a%20b:wrong@"):
        with pytest.raises(
            BrokerRefusedError, match=r"Authorization Violation.*QUEUEWORKER_NATS_CREDENTIALS"
        ):
            await version_at(guarded.url.replace("//", wrong))


async def test_a_seed_in_a_file(guarded: EmbeddedNats, user_seed: bytes, tmp_path: Path) -> None:
    file = tmp_path / "user.nk"
    file.write_bytes(user_seed + b"\n")
    assert await version_at(f"{guarded.url}?nkey={file}") > (2,)
    file.write_bytes(new_seed(nkeys.PREFIX_BYTE_USER))
    with pytest.raises(BrokerRefusedError, match="Authorization Violation"):
        await version_at(f"{guarded.url}?nkey={file}")
    file.write_text("no seed")
    with pytest.raises(BrokerRefusedError, match=r"user\.nk cannot be used.*begins with SU"):
        await version_at(f"{guarded.url}?nkey={file}")


async def test_a_token() -> None:
    with EmbeddedNats(config='authorization { token: "s3cret" }') as server:
        assert await version_at(server.url.replace("//", "//s3cret@")) > (2,)
        with pytest.raises(BrokerRefusedError, match="Authorization Violation"):
            await version_at(server.url.replace("//", "//wrong@"))


async def test_a_credentials_file(tmp_path: Path) -> None:
    operator, account = new_seed(nkeys.PREFIX_BYTE_OPERATOR), new_seed(nkeys.PREFIX_BYTE_ACCOUNT)
    user = new_seed(nkeys.PREFIX_BYTE_USER)
    no_limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    of_account = token_of(operator, account, "account", limits={**no_limits, "wildcards": True})
    config = f"""
        operator: {token_of(operator, operator, "operator")}
        resolver: MEMORY
        resolver_preload: {{ {public_of(account)}: {of_account} }}
        system_account: {public_of(account)}
    """
    creds = tmp_path / "user.creds"
    jwt = token_of(account, user, "user", subs=-1, data=-1, payload=-1)
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.decode()}\n------END USER NKEY SEED------\n"
    )
    with EmbeddedNats(config=config) as server:
        assert await version_at(f"{server.url}?creds={creds}") > (2,)
        directory = tmp_path / "mounted"
        directory.mkdir()
        (directory / "creds").write_bytes(creds.read_bytes())
        assert await version_at(with_credentials(server.url, str(directory))) > (2,)
        creds.write_text("nothing of the kind")
        with pytest.raises(BrokerRefusedError, match="holds no JWT with a seed"):
            await version_at(f"{server.url}?creds={creds}")


async def test_a_directory_of_credentials(guarded: EmbeddedNats, user_seed: bytes, tmp_path: Path) -> None:
    """As a Secret is mounted: read anew for each connection, with a newline at the end or without."""
    url = with_credentials(guarded.url, str(tmp_path))
    (tmp_path / "nkey").write_bytes(user_seed)
    assert await version_at(url) > (2,)
    (tmp_path / "nkey").unlink()
    (tmp_path / "username").write_text("a b\n")
    (tmp_path / "password").write_text("wrong")
    link = Link(parse_address(url), 20.0, "test")
    with pytest.raises(BrokerRefusedError, match="Authorization Violation"):
        await link.opened()
    (tmp_path / "password").write_text("p@ss/w:rd\n")
    assert (await link.opened()).version > (2,)
    await link.close()


async def test_a_token_in_a_directory_reaches_every_command(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    with EmbeddedNats(config='authorization { token: "s3cret" }') as server:
        given = {"QUEUEWORKER_BROKER_URL": server.url, "QUEUEWORKER_NATS_CREDENTIALS": str(tmp_path)}
        settings = settings_from(given)
        assert await version_at(settings.broker_url) > (2,)
        # Also where the code names the broker and only the variable the credentials.
        app = App(server.url)
        app.apply(settings_from({"QUEUEWORKER_NATS_CREDENTIALS": str(tmp_path)}), ["nats_credentials"])
        assert await version_at(app.broker_url) > (2,)
        refused = App(server.url).make_broker()
        with pytest.raises(BrokerRefusedError, match="Authorization Violation"):
            await refused.check("q")
    for told in (repr(parse_address(settings.broker_url)), app.make_broker().display_url):
        assert "s3cret" not in told


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ([], "has none of creds, nkey, token, username, password, ca.crt"),
        (["username"], "has a username and not the other one"),
        (["token", "nkey"], "signs in twice, by nkey and by token"),
        (["ca.crt"], "ca.crt.* cannot be loaded"),
    ],
)
def test_a_directory_that_cannot_be_used_says_why(held: list[str], text: str, tmp_path: Path) -> None:
    for name in held:
        (tmp_path / name).write_text("secret")
    with pytest.raises(CredentialsUnusableError, match=text) as caught:
        parse_address(with_credentials("nats://a", str(tmp_path)))
    assert "secret" not in str(caught.value)
    with pytest.raises(CredentialsUnusableError, match="cannot be read: No such file"):
        parse_address(with_credentials("nats://a", str(tmp_path / "nowhere")))


def test_credentials_are_for_nats_only() -> None:
    assert with_credentials("redis://a", "/x") == "redis://a"
    assert with_credentials("nats://a?tls_ca=/y", "/a b") == "nats://a?tls_ca=/y&credentials=/a%20b"
    assert with_credentials("tls://a?credentials=/y", "/x") == "tls://a?credentials=/y"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A key and a certificate that vouches for itself."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return key, certificate


async def test_the_rights_that_a_worker_needs_suffice(tmp_path: Path) -> None:
    inbox = 'subscribe: ["_INBOX.>"]'
    rights = f'publish: ["$JS.API.>", "$JS.ACK.>", "q.q.>", "$KV.QW_Q.>"], {inbox}'
    # Whoever may not acknowledge is told so, not left waiting for an answer.
    mute = f'publish: ["$JS.API.>", "q.q.>", "$KV.QW_Q.>"], {inbox}'
    producer = f'publish: ["q.q.normal"], {inbox}'
    users = ", ".join(
        f"{{user: {name}, password: {name}, permissions: {{ {granted} }}}}"
        for name, granted in (("worker", rights), ("mute", mute), ("producer", producer))
    )
    with EmbeddedNats(config=f"authorization {{ users: [{users}] }}") as server:
        site = await fresh_site(server.url.replace("//", "//worker:worker@"))
        await site.nats().check("q")
        # A producer may do nothing else, so it cannot ask whose stream it is.
        async with NatsProxy(server.port) as proxy:
            publisher = site.nats(url=proxy.url.replace("//", "//producer:producer@")).publisher()
            for payload in (b"1", b"2", b"3"):
                await publisher.publish_many("q", [payload])
            await publisher.close()
            assert sum(sent.subject.startswith("$JS.API") for sent in proxy.log) == 1, "once, and not again"
        consumer, renewer = site.consumer(), site.renewer()
        deliveries = (await receive(consumer)).deliveries
        assert not await renewer.extend(deliveries)
        await renewer.announce(Presence(True, 3, 1, 3))
        await site.fences().fence("q", "r9", "why")
        outcomes = await settle(consumer, deliveries[:2], Action.COMMIT, Action.RELEASE)
        assert outcomes == [Outcome.COMMITTED, Outcome.RELEASED]

        muted = site.consumer(url=server.url.replace("//", "//mute:mute@"))
        told: list[tuple[Outcome, str]] = []
        [delivery] = (await receive(muted, 1)).deliveries
        await muted.settle([Settlement(delivery, Action.COMMIT)], lambda _, *rest: told.append(rest))
        [(outcome, text)] = told
        assert outcome is Outcome.UNKNOWN
        assert "may not acknowledge" in text
        await site.close()


async def test_a_right_that_is_taken_away_stops_the_work_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rights(acks: str) -> str:
        given = f'publish: ["$JS.API.>", {acks} "q.q.>", "$KV.QW_Q.>"], subscribe: ["_INBOX.>"]'
        return f"authorization {{ users: [{{user: w, password: w, permissions: {{ {given} }}}}] }}"

    both = rights('"$JS.ACK.>",')
    with EmbeddedNats(config=both) as server:
        settings = server.directory / "server.conf"
        before = settings.read_text()

        got: Sequence[Delivery]

        def reload(config: str) -> None:
            settings.write_text(before.replace(both, config))
            os.kill(server.pid, signal.SIGHUP)

        site = await fresh_site(server.url.replace("//", "//w:w@"))
        consumer = site.consumer(timing=dataclasses.replace(CALM, block=0.2))
        await site.publish(*(b"%d" % n for n in range(20)))
        first = await receive_all(consumer, 2)
        assert await settle(consumer, first, Action.COMMIT) == [Outcome.COMMITTED] * 2
        reload(rights(""))
        told, got = "", ()
        async with asyncio.timeout(PATIENCE):
            while not told:
                try:
                    await site.publish(b"1")
                    got = (await consumer.receive(1)).deliveries
                except BrokerError as error:
                    # Those whose rights have changed are cut, and for a moment of the reload nobody is known.
                    told = str(error) if "may not acknowledge" in str(error) else ""
                    continue
                await settle(consumer, got, Action.COMMIT)
        assert "this user may not acknowledge" in told
        assert "give the user the right to publish to $JS.ACK.>" in told
        for _ in range(5):
            with pytest.raises(BrokerRefusedError, match="may not acknowledge"):
                await consumer.receive(10)
        monkeypatch.setattr("worker_runtime.brokers.nats.consumer.REFUSAL_AGE", 0.0)
        one: list[Delivery] = []
        while not one:
            one += (await receive(consumer, 10)).deliveries
        assert await settle(consumer, one, Action.COMMIT) == [Outcome.UNKNOWN]
        reload(both)

        got = ()
        async with asyncio.timeout(PATIENCE):
            while len(got) < 2:  # More than one at a time as soon as one was confirmed.
                try:
                    got = (await consumer.receive(5)).deliveries
                except BrokerError:
                    continue
                outcomes = await settle(consumer, got, Action.COMMIT)
        assert outcomes == [Outcome.COMMITTED] * 5
        await site.close()


async def test_an_encrypted_connection(files: tuple[Path, Path]) -> None:
    key, certificate = files
    tls = f'cert_file: "{certificate}", key_file: "{key}", ca_file: "{certificate}", verify: true'
    with EmbeddedNats(config=f"tls {{ {tls} }}") as server:
        secure = server.url.replace("nats://", "tls://")
        mine = f"tls_ca={certificate}&tls_cert={certificate}&tls_key={key}"
        assert await version_at(f"{secure}?{mine}") > (2,)
        assert await version_at(f"{server.url}?{mine}") > (2,)
        with pytest.raises(BrokerUnavailableError, match=r"(?i)certificate.verify.failed.*by tls_ca in"):
            await version_at(secure)
        directory = certificate.parent / "mounted"
        directory.mkdir()
        for name, source in (("ca.crt", certificate), ("tls.crt", certificate), ("tls.key", key)):
            (directory / name).write_bytes(source.read_bytes())
        assert await version_at(with_credentials(server.url, str(directory))) > (2,)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nats://", "names no host"),
        ("nats://a:0", "from 1 to 65535"),
        ("nats://a:x", "from 1 to 65535"),
        ("nats://u:secret@a:4222/0", "the path '/0', and NATS has no numbered databases"),
        ("nats://a?colour=red", "the option 'colour'; allowed are creds"),
        ("nats://a?creds=/nowhere/at/all", "no such file"),
        ("tls://a?tls_ca=pyproject.toml", "certificates of the broker .* cannot be loaded"),
        ("nats://u:secret@a?nkey=pyproject.toml", "signs in twice, by nkey and by a user and password"),
        ("amqp://a", "allowed are redis://"),
    ],
)
def test_a_url_that_cannot_be_used_says_why(url: str, text: str) -> None:
    with pytest.raises(BrokerError, match=text) as caught:
        broker_from_url(url, "ns")
    assert "secret" not in str(caught.value)


def test_a_url_is_shown_without_what_is_secret() -> None:
    assert parse_address("nats://u:secret@a:1,[::1]:2,b").display_url == "nats://u@a:1,[::1]:2,b:4222"
    assert "secret" not in parse_address("nats://secret@a").display_url
    address = parse_address("nats://u:p@a,b:5")
    assert [(one.host, one.port) for one in address.servers] == [("a", 4222), ("b", 5)]
