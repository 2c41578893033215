"""All keys of one namespace, by a plain client of its own: what must not be there before a run, what may be
there after it, and its removal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import Sentinel
from redis.connection import parse_url
from redis.exceptions import RedisError

from worker_runtime.brokers.base import BrokerUnavailableError
from worker_runtime.brokers.redis.address import Address, Watched, parse_address


class Footprint:
    """Raises BrokerUnavailableError."""

    def __init__(self, client: Any, address: Address, namespace: str) -> None:
        self._client = client
        self._address = address
        self._namespace = namespace
        self._pattern = "".join(f"\\{one}" if one in "*?[]^\\" else one for one in namespace) + ".*"

    async def keys(self, at_most: int | None = None) -> list[str]:
        """Sorted; stops looking after `at_most`."""
        found: set[str] = set()
        try:
            async for key in self._client.scan_iter(match=self._pattern, count=1000):
                found.add(key.decode("utf-8", "backslashreplace"))
                if at_most is not None and len(found) >= at_most:
                    break
        except (RedisError, OSError) as error:
            raise self._unavailable("list its keys", error) from error
        return sorted(found)

    async def flush_scripts(self) -> None:
        """Make the server forget every script: each client has to load its own again."""
        try:
            await self._client.script_flush()
        except (RedisError, OSError) as error:
            raise self._unavailable("flush its scripts", error) from error

    async def remove(self) -> int:
        """Delete every key of the namespace. How many there were."""
        keys = await self.keys()
        try:
            for key in keys:
                await self._client.unlink(key)
        except (RedisError, OSError) as error:
            raise self._unavailable("delete the keys of the run", error) from error
        return len(keys)

    def _unavailable(self, wish: str, error: Exception) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"Redis at {self._address.display_url} did not {wish} ({type(error).__name__}: {error});"
            f" the namespace of the run is {self._namespace}"
        )


def _primary_of_sentinels(url: str, address: Address, watched: Watched) -> Any:
    scheme, _, rest = url.replace("+sentinel", "", 1).partition("://")
    options = parse_url(f"{scheme}://-/?{rest.partition('?')[2]}")  # type: ignore[no-untyped-call]
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    secure = {"ssl": True, **tls} if address.tls is not None else {}
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        [(node.host, node.port) for node in address.nodes],
        sentinel_kwargs={
            "username": watched.username or None,
            "password": watched.password or None,
            **secure,
        },
        username=address.username or None,
        password=address.password or None,
        db=address.database,
        **secure,
    )
    return sentinels.master_for(watched.primary)


@asynccontextmanager
async def footprint(url: str, namespace: str) -> AsyncIterator[Footprint]:
    """Raises BrokerError for a URL that cannot be used."""
    address = parse_address(url)
    if address.cluster:
        client: Any = redis.asyncio.RedisCluster(
            startup_nodes=[ClusterNode(node.host, node.port) for node in address.nodes],
            username=address.username or None,
            password=address.password or None,
            ssl=address.tls is not None,
        )
    elif address.sentinel is not None:
        client = _primary_of_sentinels(url, address, address.sentinel)
    else:
        client = redis.asyncio.from_url(url)
    try:
        yield Footprint(client, address, namespace)
    finally:
        await client.aclose()
