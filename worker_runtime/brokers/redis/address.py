"""What a Redis URL says: where, as whom, which database, over TLS or not."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from redis.connection import parse_url

from worker_runtime.brokers.base import BrokerUsageError

SCHEMES = (
    "redis://",
    "rediss://",
    "redis+cluster://",
    "rediss+cluster://",
    "redis+sentinel://",
    "rediss+sentinel://",
    "unix://",
)
#: Where a Sentinel listens when the URL gives no port.
SENTINEL_PORT = 26379


@dataclass(frozen=True, slots=True)
class Node:
    """Where one server listens: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Watched:
    """The primary that Sentinels watch: the name they know it by, and as whom they are asked."""

    primary: str
    username: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL. `nodes` has more than one entry only for a cluster or Sentinels; `sentinel` is set when
    they are Sentinels, and then user, password and database are those of the servers that they watch."""

    display_url: str
    nodes: tuple[Node, ...]
    cluster: bool
    username: str
    password: str
    database: int
    tls: ssl.SSLContext | None
    sentinel: Watched | None = None


def parse_address(url: str) -> Address:
    """Raises BrokerUsageError for a URL that cannot be used; its text never shows the password."""
    scheme, separator, rest = url.partition("://")
    if not separator or f"{scheme}://" not in SCHEMES:
        shown = f"{scheme}://..." if separator else "a URL without a scheme"
        raise BrokerUsageError(f"the broker URL is {shown}; allowed are {', '.join(SCHEMES)}")
    plain, _, topology = scheme.partition("+")
    cluster = topology == "cluster"
    primary = ""
    if topology == "sentinel":
        primary, rest = _primary_name(scheme, rest)
    hosts = _each_host(rest) if topology else [rest]
    try:
        parsed = [_options(f"{plain}://{host}") for host in hosts]
        port_check = [urlsplit(f"{plain}://{host}").port for host in hosts]
    except ValueError as error:
        raise BrokerUsageError(f"the {scheme}:// URL of the broker cannot be read: {error}") from None
    first = parsed[0]
    database = int(first.get("db") or 0)
    if cluster and database:
        raise BrokerUsageError(
            f"the broker URL asks for database {database}; Redis Cluster has only database 0"
        )
    default_port = SENTINEL_PORT if primary else 6379
    if first.get("path"):
        nodes: tuple[Node, ...] = (Node(path=str(first["path"])),)
    else:
        nodes = tuple(
            Node(str(one.get("host") or "localhost"), port or int(one.get("port") or default_port))
            for one, port in zip(parsed, port_check, strict=True)
        )
    username = str(first.get("username") or "")
    user = f"{username}@" if username else ""
    tail = (f"/{primary}" if primary else "") + (f"/{database}" if database else "")
    return Address(
        display_url=f"{scheme}://{user}{','.join(map(str, nodes))}{tail}",
        nodes=nodes,
        cluster=cluster,
        username=username,
        password=str(first.get("password") or ""),
        database=database,
        tls=_tls(first) if plain == "rediss" else None,
        sentinel=_watched(primary, first) if primary else None,
    )


def _primary_name(scheme: str, rest: str) -> tuple[str, str]:
    """The name of the primary, and the rest of the URL as it would be without it."""
    before, question, query = rest.partition("?")
    hosts, _, path = before.partition("/")
    name, slash, database = path.partition("/")
    if "@" in path:
        raise BrokerUsageError(
            f"the {scheme}:// URL of the broker has a / before the @; in a user name or password"
            " write it as %2F"
        )
    if not name:
        raise BrokerUsageError(
            f"the {scheme}:// URL of the broker names no primary; write {scheme}://HOST:{SENTINEL_PORT},.../NAME"
            " with the name that the Sentinels watch it by (their `sentinel monitor NAME`)"
        )
    if database and not database.isdecimal():
        raise BrokerUsageError(
            f"the {scheme}:// URL of the broker has {database!r} after the name of the primary; a database"
            " is a number, or leave it out"
        )
    return unquote(name), f"{hosts}{slash}{database}{question}{query}"


def _watched(primary: str, options: dict[str, Any]) -> Watched:
    return Watched(
        primary, str(options.get("sentinel_username") or ""), str(options.get("sentinel_password") or "")
    )


def _each_host(rest: str) -> list[str]:
    """`user:password@a:1,b:2/?x=y` names several nodes with the same credentials and options."""
    hosts, slash, tail = rest.partition("/")
    credentials, at, hosts = hosts.rpartition("@")
    return [f"{credentials}{at}{host}{slash}{tail}" for host in hosts.split(",")]


def _options(url: str) -> dict[str, Any]:
    return cast(dict[str, Any], parse_url(url))  # type: ignore[no-untyped-call]


def _wants_hostname(options: dict[str, Any]) -> bool:
    return str(options.get("ssl_check_hostname", "true")).lower() not in {"false", "0", "no"}


def _tls(options: dict[str, Any]) -> ssl.SSLContext:
    """The options are those of redis-py: ssl_ca_certs, ssl_ca_path, ssl_certfile, ssl_keyfile, ssl_password,
    ssl_cert_reqs (required, optional, none), ssl_check_hostname."""
    required = str(options.get("ssl_cert_reqs", "required"))
    modes: dict[str, ssl.VerifyMode] = {
        "required": ssl.CERT_REQUIRED,
        "optional": ssl.CERT_OPTIONAL,
        "none": ssl.CERT_NONE,
    }
    if required not in modes:
        raise BrokerUsageError(
            f"ssl_cert_reqs in the broker URL is {required!r}; allowed are {', '.join(modes)}"
        )
    try:
        context = ssl.create_default_context(
            cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path")
        )
        if options.get("ssl_certfile"):
            context.load_cert_chain(
                options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password")
            )
    except (OSError, ssl.SSLError) as error:
        raise BrokerUsageError(
            f"the certificates named in the broker URL cannot be loaded: {error}"
        ) from None
    context.check_hostname = required != "none" and _wants_hostname(options)
    context.verify_mode = modes[required]
    return context
