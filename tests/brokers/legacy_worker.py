"""A worker of utopia-php/queue 4, as its commands look on the wire: the same ones, in the same order, with
the same JSON. It shares no code with the runtime, so that both can be wrong only independently."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import redis

#: What the handler of a message is given: pid, payload, attempts.
Handler = Callable[[str, Any, int], bool]


def php_json(value: Any) -> bytes:
    """As PHP writes what it has read into arrays: ASCII only, slashes escaped, whole floats without a point,
    every empty array or object as []."""
    return json.dumps(_as_arrays(value), separators=(",", ":")).replace("/", "\\/").encode()


def _as_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_arrays(each) for key, each in value.items()} or []
    if isinstance(value, list):
        return [_as_arrays(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


class LegacyWorker:
    """Synchronous, one message at a time. `job_ttl` in seconds, 0 for ever."""

    def __init__(self, client: redis.Redis, namespace: str, queue: str = "q", job_ttl: int = 0) -> None:
        self._redis: Any = client
        self._ns = namespace
        self._queue = queue
        self._job_ttl = job_ttl

    def enqueue(self, payload: Any, pid: str | None = None, timestamp: int | None = None, **more: Any) -> str:
        """As a producer, and as the retry of one: LPUSH of one envelope."""
        pid = pid or f"{random.randrange(16**14):014x}.{random.randrange(10**8):08d}"
        envelope = {
            "pid": pid,
            "queue": self._queue,
            "timestamp": int(time.time()) if timestamp is None else timestamp,
            "payload": payload,
            **more,
        }
        text = json.dumps(envelope, separators=(",", ":")).replace("/", "\\/")
        self._redis.lpush(self._key("queue"), text)
        return pid

    def receive(self, timeout: int = 1) -> dict[str, Any] | None:
        """Pop and claim. A message without pid, queue or timestamp is a type error, and gone."""
        popped = self._redis.brpop(self._key("queue"), timeout)
        if popped is None:
            return None
        message: dict[str, Any] = json.loads(popped[1])
        pid, _, _ = message["pid"], message["queue"], int(float(message["timestamp"]))
        message.setdefault("payload", [])
        message.setdefault("attempts", 0)
        if self._job_ttl > 0:
            self._redis.setex(self._job(pid), self._job_ttl, php_json(message))
        else:
            self._redis.set(self._job(pid), php_json(message))
        self._redis.lpush(self._key("processing"), pid)
        self._redis.incr(self._stats("total"))
        self._redis.incr(self._stats("processing"))
        return message

    def commit(self, message: dict[str, Any]) -> None:
        self._redis.delete(self._job(message["pid"]))
        self._redis.incr(self._stats("success"))
        self._redis.lrem(self._key("processing"), 1, message["pid"])
        self._redis.decr(self._stats("processing"))

    def reject(self, message: dict[str, Any]) -> None:
        self._redis.lpush(self._key("failed"), message["pid"])
        self._redis.incr(self._stats("failed"))
        self._redis.lrem(self._key("processing"), 1, message["pid"])
        self._redis.decr(self._stats("processing"))

    def work(self, handler: Handler, until: Callable[[], bool]) -> None:
        while not until():
            message = self.receive()
            if message is not None:
                done = handler(message["pid"], message["payload"], message["attempts"])
                (self.commit if done else self.reject)(message)

    def retry(self, max_attempts: int = 3) -> int:
        """Requeue what failed, until nothing is left or this sweep's own work comes round."""
        began, requeued = time.time(), 0
        while self._redis.llen(self._key("failed")):
            popped = self._redis.brpop(self._key("failed"), 2)
            if popped is None:
                break
            record = self._redis.get(self._job(popped[1].decode()))
            if record is None:
                continue
            message = json.loads(record)
            if int(float(message["timestamp"])) >= int(began):
                self._redis.rpush(self._key("failed"), popped[1])
                break
            if message.get("attempts", 0) >= max_attempts:
                self._redis.lpush(self._key("dead"), popped[1])
                continue
            self.enqueue(message["payload"], attempts=int(message.get("attempts", 0)) + 1)
            requeued += 1
        return requeued

    def reap(self, older_than: int = 90_000) -> int:
        """Requeue what others left in processing, by the age of the envelope."""
        reaped = 0
        for pid in self._redis.lrange(self._key("processing"), 0, -1):
            record = self._redis.get(self._job(pid.decode()))
            if record is None:
                self._redis.lrem(self._key("processing"), 1, pid)
                continue
            message = json.loads(record)
            if time.time() - int(float(message["timestamp"])) < older_than:
                continue
            self.enqueue(message["payload"], attempts=int(message.get("attempts", 0)) + 1)
            self._redis.lrem(self._key("processing"), 1, pid)
            reaped += 1
        return reaped

    def _key(self, kind: str) -> str:
        return f"{self._ns}.{kind}.{self._queue}"

    def _job(self, pid: str) -> str:
        return f"{self._ns}.jobs.{self._queue}.{pid}"

    def _stats(self, name: str) -> str:
        return f"{self._ns}.stats.{self._queue}.{name}"
