"""Workers whose clocks are five minutes off, both ways: all times of the protocol are the broker's."""

from __future__ import annotations

from collections import Counter

from tests.runtime.conftest import Bench
from tests.runtime.running import wait_until

#: The app shifts every clock of its process that tells the time of day, before anything is received.
_SHIFTED = """
import asyncio, datetime, os, time
OFF = {off}
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + OFF
time.time_ns = lambda: _time_ns() + OFF * 10**9

class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(time.time(), tz)
datetime.datetime = Shifted

from worker_runtime import App, Message, Retry
app = App.from_env()

def write(text):
    file = os.open("ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (text + "\\n").encode())
    os.close(file)

@app.job("q", coroutines=3, prefetch=3, retry=Retry(max_attempts=2, backoff=1.0, jitter=0))
async def handle(n: int, message: Message):
    write(f"{{n}}:{{message.attempts}}:{off}")
    if n == 0 and not message.attempts:
        raise ValueError("once more, later")
    # Longer than two expiries: only a renewal by the broker's clock keeps it.
    await asyncio.sleep(9)
    write(f"done:{{n}}:{{time.time():.0f}}")
"""


def test_clocks_that_are_off_change_nothing(bench: Bench) -> None:
    """Both run from one directory: the first has read its source when the second one is written."""
    flags = ("--expiry-seconds", "4")
    workers = [bench.run(_SHIFTED.format(off=off), *flags).consuming() for off in (-300, 300)]
    bench.publish("q", *[str(n) for n in range(6)])
    wait_until(lambda: bench.succeeded() == 6, "all work done")
    wrote = workers[0].wrote()
    starts = Counter(line for line in wrote if not line.startswith("done"))
    assert {line.rpartition(":")[0] for line in starts} == {"0:0", "0:1", *(f"{n}:0" for n in range(1, 6))}
    assert len(starts) == 7, "nothing was taken over and run again"
    assert {line.rpartition(":")[2] for line in starts} == {"-300", "300"}, "both took part"
    ends = [int(line.rpartition(":")[2]) for line in wrote if line.startswith("done")]
    assert max(ends) - min(ends) > 500, "their clocks were off"
    for worker in workers:
        assert worker.stop() == 0
        assert not worker.said("superseded")
