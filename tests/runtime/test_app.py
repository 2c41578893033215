"""What a program writes: registration, binding, overrides, publishing."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from tests.runtime.conftest import Bench
from tests.services import free_port
from worker_runtime import App, Context, Message, RegistrationError, Timing
from worker_runtime.binding import bind
from worker_runtime.brokers.base import BrokerUnavailableError, Delivery, PayloadRefusedError
from worker_runtime.settings import Settings, SettingsError, settings_from


def delivery(payload: bytes) -> Delivery:
    return Delivery("pid", "q", payload, 5.0, 2, None)


class Model(BaseModel):
    n: int


class Typed(typing.TypedDict):
    n: int


@dataclasses.dataclass
class Plain:
    n: int


class Struct(msgspec.Struct):
    n: int


@dataclasses.dataclass
class WithModel:
    inner: Model


@pytest.mark.parametrize(
    ("annotation", "raw", "expected"),
    [
        (Model, b'{"n": 1}', Model(n=1)),
        (Typed, b'{"n": 1}', {"n": 1}),
        (Plain, b'{"n": 1}', Plain(1)),
        (Struct, b'{"n": 1}', Struct(1)),
        (WithModel, b'{"inner": {"n": 1}}', WithModel(Model(n=1))),
        (list[Model], b'[{"n": 1}]', [Model(n=1)]),
        (dict, b'{"n": 1}', {"n": 1}),
        (dict[str, int], b'{"n": 1}', {"n": 1}),
        (Any, b"[null]", [None]),
        (bytes, b'{"n":  1.0}', b'{"n":  1.0}'),
    ],
    ids=str,
)
def test_the_payload_gets_the_annotated_type(annotation: Any, raw: bytes, expected: Any) -> None:
    async def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = annotation
    prepare, _ = bind(handler, {}).resolve({})
    assert prepare(delivery(raw), None) == (expected,)
    if annotation not in (Any, bytes):
        with pytest.raises(Exception, match=r"\S"):
            prepare(delivery(b'"a word"'), None)


async def test_parameters_are_found_by_annotation_and_resources_by_name() -> None:
    async def handler(
        message: Message, payload: dict[str, int], store: str, /, *, cache: str = "none"
    ) -> Any:
        return message, payload, store, cache

    binding = bind(handler, {})
    prepare, call = binding.resolve({"store": "db"})
    message, payload, store, cache = await call(*prepare(delivery(b'{"a": 1}'), None))
    assert (message.pid, message.queue, message.timestamp, message.attempts) == ("pid", "q", 5.0, 2)
    assert message.json() == {"a": 1}
    assert message.payload == b'{"a": 1}'
    assert (payload, store, cache) == ({"a": 1}, "db", "none")
    prepare, call = binding.resolve({"store": "db", "cache": "mem"})
    assert (await call(*prepare(delivery(b"{}"), None)))[3] == "mem"
    with pytest.raises(RegistrationError, match="'store'"):
        binding.resolve({})


async def test_a_resource_with_a_default_before_other_parameters_may_be_absent() -> None:
    async def handler(payload: dict[str, int], store: str = "none", message: Message = None) -> Any:  # type: ignore[assignment]
        return payload, store, message.pid

    prepare, call = bind(handler, {}).resolve({})
    assert await call(*prepare(delivery(b"{}"), None)) == ({}, "none", "pid")


def test_registration_refuses_what_cannot_work() -> None:
    app = App(broker="redis://no-such-host.invalid")  # nothing is connected to

    async def fine(payload: dict[str, Any]) -> None: ...
    async def starred(*payload: Any) -> None: ...

    with pytest.raises(RegistrationError, match="prefetch is 1 and coroutines 2"):
        app.job("q", coroutines=2, prefetch=1)(fine)
    with pytest.raises(RegistrationError, match="1 or more"):
        app.job("q", coroutines=0)(fine)
    with pytest.raises(RegistrationError, match="payload"):
        app.job("q")(starred)
    with pytest.raises(RegistrationError, match="one word"):
        app.job("two words")(fine)
    app.job("q", coroutines=3)(fine)
    assert app.jobs["q"].prefetch == 3, "prefetch follows coroutines"
    with pytest.raises(RegistrationError, match="twice"):
        app.job("q")(fine)
    with pytest.raises(RegistrationError, match="has no message"):

        @app.on_worker_start
        def start(context: Context) -> None: ...


def test_overrides_apply_to_one_queue() -> None:
    app = App()

    async def one(payload: dict[str, Any]) -> None: ...
    async def two(payload: dict[str, Any]) -> None: ...

    app.job("a", coroutines=2, prefetch=10)(one)
    assert [
        (job.coroutines, job.prefetch) for job in app.selected_jobs(Settings(coroutines=4, prefetch=8))
    ] == [(4, 8)]
    assert app.selected_jobs(Settings(coroutines=4))[0].prefetch == 10
    with pytest.raises(SettingsError, match="prefetch is 1"):
        app.selected_jobs(Settings(prefetch=1))
    app.job("b")(two)
    assert [job.queue for job in app.selected_jobs(Settings())] == ["a", "b"]
    assert app.selected_jobs(Settings(queue="b", coroutines=5))[0].prefetch == 5
    with pytest.raises(SettingsError, match="QUEUEWORKER_QUEUE"):
        app.selected_jobs(Settings(coroutines=5))
    with pytest.raises(SettingsError, match="'c'"):
        app.selected_jobs(Settings(queue="c"))
    with pytest.raises(SettingsError, match="no job"):
        App().selected_jobs(Settings())


def test_explicit_settings_win_over_the_code() -> None:
    app = App("redis://in-code", "code", Timing(expiry=7, block=3))
    app.apply(settings_from({}), ())
    assert (app.broker_url, app.namespace, app.timing.expiry, app.timing.block) == (
        "redis://in-code",
        "code",
        7,
        3,
    )
    app.apply(Settings(broker_url="redis://given", expiry_seconds=5.0), ("broker_url", "expiry_seconds"))
    assert (app.broker_url, app.namespace, app.timing.expiry, app.timing.block) == (
        "redis://given",
        "code",
        5.0,
        3,
    )


async def test_publish_and_enqueue_in_a_program(bench: Bench) -> None:
    app = App(bench.url, bench.namespace)
    pid = await app.publish("q", Model(n=0))
    pids = await app.publish_many("q", [{"n": 1}, Struct(2), Plain(3), b'{"n": 4.0}'])
    for n in range(5, 2005):
        await app.enqueue("q", {"n": n})
    await app.close()
    envelopes = [json.loads(envelope) for envelope in bench.ready()]
    assert [envelope["payload"]["n"] for envelope in envelopes] == list(range(2005))
    assert [envelope["pid"] for envelope in envelopes[:5]] == [pid, *pids]
    assert '{"n": 4.0}' in bench.ready()[4], "bytes go through as they are"
    await app.publish("q", {"n": 2005})
    assert len(bench.ready()) == 2006, "an app can be used again after close"
    await app.close()


async def test_what_cannot_be_published_is_refused_with_a_reason(bench: Bench) -> None:
    app = App(bench.url, bench.namespace)
    with pytest.raises(PayloadRefusedError, match="set_iterator"):
        await app.publish("q", iter({1}))
    with pytest.raises(PayloadRefusedError):
        await app.publish("q", b"{not json")
    await app.close()
    assert bench.ready() == []


async def test_what_is_refused_in_the_background_takes_no_neighbour_with_it(bench: Bench) -> None:
    app = App(bench.url, bench.namespace)
    for n in range(300):
        await app.enqueue("q", b"{not json" if n in (7, 8, 200) else {"n": n})
    with pytest.raises(BrokerUnavailableError, match="3 enqueued messages"):
        await app.close()
    sent = [json.loads(envelope)["payload"]["n"] for envelope in bench.ready()]
    assert sent == [n for n in range(300) if n not in (7, 8, 200)]


async def test_close_tells_how_many_enqueued_messages_were_not_sent() -> None:
    app = App(f"redis://127.0.0.1:{free_port()}", timing=Timing(command_timeout=0.2))
    await app.enqueue("q", {})
    await app.enqueue("q", {})
    with pytest.raises(BrokerUnavailableError, match="2 enqueued messages"):
        await app.close()
