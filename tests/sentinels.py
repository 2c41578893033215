"""A primary, a replica and three Sentinels as real processes, on free ports of 127.0.0.1. They die with the
process that started them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import redis

from tests.services import free_port
from worker_runtime.brokers.embedded import die_with
from worker_runtime.brokers.redis.server import EmbeddedRedis, find_redis_server

#: What the Sentinels call the primary.
NAME = "main"
#: How often they look at the servers and at each other, in milliseconds (7.0 and newer; 6.2 keeps its own).
#: A Sentinel that has not heard for four publish periods of a promotion undoes it, and a replica that was not
#: heard of for five ping periods is not promoted: those stay long.
_PACE = ("INFO-PERIOD", 200, "ASK-PERIOD", 200, "PUBLISH-PERIOD", 1500)
#: An old primary is then told in a minute that it is a replica.
_LATE = ("PUBLISH-PERIOD", 15_000)
#: A server counts as down when it has not answered for this long: for ever, and in a test of its death.
_NEVER, _SOON = 600_000, 1000
_FAILOVER_TIMEOUT = 2000
_FAST_SYNC = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")


class Sentinel:
    """One Sentinel process."""

    def __init__(self, primary_port: int) -> None:
        self.port = free_port()
        self._directory = tempfile.TemporaryDirectory(prefix="queueworker-sentinel-")
        self.configuration = Path(self._directory.name) / "sentinel.conf"
        self.configuration.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._directory.name}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {primary_port} 1\n"
            f"sentinel down-after-milliseconds {NAME} {_NEVER}\n"
            f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, also again after `kill` with what it had written down."""
        binary = find_redis_server()
        assert binary is not None
        with (Path(self._directory.name) / "sentinel.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(binary), str(self.configuration), "--sentinel"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()) if sys.platform == "linux" else None,
            )
        until(self._answers, f"the Sentinel on port {self.port} to answer")
        self.keep_pace(*_PACE)
        return self

    def keep_pace(self, *pace: str | int) -> None:
        with contextlib.suppress(redis.ResponseError):
            self.ask("SENTINEL", "DEBUG", *pace)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        try:
            return bool(self.ask("PING"))
        except redis.ConnectionError:
            return False

    def ask(self, *command: str | int) -> Any:
        with redis.Redis(port=self.port, decode_responses=True, socket_timeout=30) as client:
            return client.execute_command(*command)

    def primary(self) -> dict[str, str]:
        """What it says of the primary that it watches."""
        with redis.Redis(port=self.port, decode_responses=True, socket_timeout=30) as client:
            answer = client.execute_command("SENTINEL MASTER", NAME)
        return {name: str(value) for name, value in dict(answer).items()}

    def log(self) -> str:
        return (Path(self._directory.name) / "sentinel.log").read_text("utf-8", "replace")

    @property
    def running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._directory.cleanup()


class WatchedRedis:
    """`servers` are a primary and its replica, in the roles that they had first; `sentinels` watch them, and
    promote nobody of themselves until `promoted_without`. An old primary goes on as one, as it does in
    earnest for about ten seconds, until `settle`."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.servers: list[EmbeddedRedis] = []
        self.sentinels: list[Sentinel] = []

    @property
    def url(self) -> str:
        return self.url_of(*(sentinel.port for sentinel in self.sentinels))

    @staticmethod
    def url_of(*ports: int) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{port}" for port in ports) + f"/{NAME}"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            primary = stack.enter_context(EmbeddedRedis(args=_FAST_SYNC))
            replica = EmbeddedRedis(args=(*_FAST_SYNC, "--replicaof", "127.0.0.1", str(primary.port)))
            self.servers = [primary, stack.enter_context(replica)]
            for _ in range(3):
                self.sentinels.append(stack.enter_context(Sentinel(primary.port)))
            self.settle()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def settle(self) -> None:
        """Wait until every Sentinel that runs sees the same primary, its replica in step, and two others. An
        old primary is told here what it is; the Sentinels take their time for that."""
        for sentinel in self.running:
            sentinel.keep_pace(*_PACE)
        until(lambda: len({one.primary()["port"] for one in self.running}) == 1, "the Sentinels to agree")
        primary = self.primary()
        old = self.other(primary)
        if role(old) == "master" and role(primary) == "master":
            with redis.Redis(port=old.port, socket_timeout=30) as client:
                client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
                client.client_kill_filter(_type="normal")
        until(self._settled, "the Sentinels to see both servers in their roles")

    def leave_the_old_one_alone(self) -> None:
        """From now to the next `settle` an old primary is not told what it is."""
        for sentinel in self.running:
            sentinel.keep_pace(*_LATE)

    def _settled(self) -> bool:
        views = [sentinel.primary() for sentinel in self.running]
        replicas = self._replicas()
        return (
            len({(view["port"], view["config-epoch"]) for view in views}) == 1
            and all(view["num-other-sentinels"] == "2" and view["flags"] == "master" for view in views)
            and len(replicas) == len(self.running)
            and all(
                one["master-link-status"] == "ok" and set(one["flags"].split(",")) == {"slave"}
                for one in replicas
            )
        )

    def _replicas(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for sentinel in self.running:
            with redis.Redis(port=sentinel.port, decode_responses=True, socket_timeout=30) as client:
                found += client.sentinel_slaves(NAME)
        return found

    @property
    def running(self) -> list[Sentinel]:
        return [sentinel for sentinel in self.sentinels if sentinel.running]

    def primary(self) -> EmbeddedRedis:
        """The server that the first Sentinel names that runs."""
        port = int(self.running[0].primary()["port"])
        return next(server for server in self.servers if server.port == port)

    def other(self, server: EmbeddedRedis) -> EmbeddedRedis:
        return next(one for one in self.servers if one is not server)

    def fail_over(self) -> EmbeddedRedis:
        """Have the replica promoted, once it is in step; returns it when it is the primary and the first
        Sentinel that runs names it."""
        self.settle()
        new = self.other(self.primary())
        until(self._ordered, "a failover to be accepted")
        until(lambda: role(new) == "master" and self.primary() is new, "the replica to be promoted")
        return new

    def promoted_without(self, dead: EmbeddedRedis) -> EmbeddedRedis:
        """Have a Sentinel notice that this server does not answer, and the others vote for it; returns the
        other server when it is promoted and every Sentinel that runs names it."""
        new = self.other(dead)
        running = self.running
        # One of them: several that notice at the same moment may split the votes and have to wait.
        running[0].ask("SENTINEL", "SET", NAME, "down-after-milliseconds", _SOON)
        until(
            lambda: all(one.primary()["port"] == str(new.port) for one in running) and role(new) == "master",
            "the Sentinels to promote the other server",
        )
        running[0].ask("SENTINEL", "SET", NAME, "down-after-milliseconds", _NEVER)
        return new

    def _ordered(self) -> bool:
        try:
            self.running[0].ask("SENTINEL", "FAILOVER", NAME)
        except redis.ResponseError:
            return False  # INPROG or NOGOODSLAVE: the last one has not settled yet
        return True


def role(server: EmbeddedRedis) -> str:
    """ "master" or "slave", as Redis says it."""
    with redis.Redis(port=server.port, socket_timeout=30) as client:
        return str(client.execute_command("ROLE")[0].decode())


def until(condition: Callable[[], bool], what: str, limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit:g} s for {what}")
        time.sleep(0.02)
