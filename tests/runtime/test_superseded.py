"""A handler whose message another worker has taken over: it is told, cancelled where its job wants that, and
its settlement is refused."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import wait_until
from worker_runtime import App
from worker_runtime.binding import RegistrationError

SOURCE = """
    import asyncio, pathlib, time
    from worker_runtime import App, Message
    app = App.from_env()

    def note(word):
        with open("ran", "a") as file:
            file.write(word + "\\n")

    @app.on_error
    def failed() -> None: note("error-hook")

    @app.job("q", cancel_superseded=CANCEL)
    ASYNC def long(payload: str, message: Message) -> None:
        note("began-" + payload)
        try:
            while not pathlib.Path("go").exists():
                AWAIT.sleep(0.02)
                if message.superseded:
                    note("saw-" + payload)
                    break
        except asyncio.CancelledError:
            note("cancelled-" + payload)
            raise
        note("returned-" + payload)
"""
EXPIRY = ("--expiry-seconds", "1")


def source(cancel: bool, plain: bool) -> str:
    text = SOURCE.replace("CANCEL", str(cancel))
    return text.replace("ASYNC def" if plain else "ASYNC", "def" if plain else "async").replace(
        "AWAIT", "time" if plain else "await asyncio"
    )


def taken_over(bench: Bench) -> None:
    """As if another worker had recovered it and taken it again: it has another token now."""
    (pid,) = bench.client.hkeys(bench.key("owners"))
    with bench.client.pipeline() as both:  # at once: between the two it would renew or recover the message
        both.zadd(bench.key("liveness"), {pid: 1e14})
        both.hset(bench.key("owners"), pid, "r2 other-worker reservation")
        both.execute()


@pytest.mark.parametrize(
    ("cancel", "plain"), [(False, False), (False, True), (True, False)], ids=["told", "thread", "cancelled"]
)
def test_it_learns_of_it_within_a_renewal(cancel: bool, plain: bool, bench: Bench) -> None:
    worker = bench.run(source(cancel, plain), *EXPIRY)
    (pid,) = bench.publish("q", '"one"')
    wait_until(lambda: "began-one" in worker.wrote(), "a running handler")
    taken_over(bench)
    worker.wait_for("what jobs.long still works on is no longer this worker's")
    assert worker.said("no longer this worker", message_id=pid, level="warning")
    worker.wait_for_counts(superseded=1, running=0, unconfirmed=0, committed=0)
    assert bench.succeeded() == 0
    assert bench.client.hget(bench.key("owners"), pid).startswith("r2 "), "nothing of the other's is touched"
    (worker.directory / "go").touch()
    bench.client.delete(bench.key("owners"), bench.key("liveness"), bench.key("processing"))
    bench.publish("q", '"two"')
    wait_until(lambda: bench.succeeded() == 1, "the next message in the same slot")
    ends = ["cancelled-one"] if cancel else ["saw-one", "returned-one"]
    assert worker.wrote() == ["began-one", *ends, "began-two", "returned-two"]
    assert worker.stop() == 0
    assert len(worker.said("no longer this worker")) == 1


def test_only_what_can_be_cancelled_may_ask_for_it() -> None:
    with pytest.raises(RegistrationError, match=r"cancel_superseded .* message\.superseded"):

        @App().job("q", cancel_superseded=True)
        def plain(payload: str) -> None: ...
