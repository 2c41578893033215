"""What a NATS URL says: which servers, as whom, over TLS or not."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote

from worker_runtime.brokers.base import BrokerUsageError

SCHEMES = ("nats://", "tls://")
#: Options after the question mark, each a path of a file.
FILES = ("creds", "nkey", "tls_ca", "tls_cert", "tls_key")
_PORT = 4222


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL. At most one way to sign in is set."""

    display_url: str
    servers: tuple[Server, ...]
    username: str = ""
    password: str = ""
    token: str = ""
    #: A file with a JWT and a seed, as `nsc` writes it.
    creds: Path | None = None
    #: A file with an NKey's seed.
    nkey: Path | None = None
    #: Set when the connection must be encrypted.
    tls: ssl.SSLContext | None = None


def parse_address(url: str) -> Address:
    """Raises BrokerUsageError for a URL that cannot be used; its text never shows a password or a token."""
    scheme, separator, rest = url.partition("://")
    if not separator or f"{scheme}://" not in SCHEMES:
        raise BrokerUsageError(f"the broker URL is {scheme}://...; allowed are {', '.join(SCHEMES)}")
    rest, _, query = rest.partition("?")
    credentials, at, hosts = rest.rpartition("@")
    servers = tuple(_server(host) for host in hosts.rstrip("/").split(","))
    options = _options(query)
    user, colon, password = credentials.partition(":")
    ways: list[str] = [name for name in ("creds", "nkey") if name in options]
    ways += ["a user and password"] if at and colon else ["a token"] if at else []
    if len(ways) > 1:
        raise BrokerUsageError(
            f"the broker URL signs in twice, by {' and by '.join(ways)}; leave one of them out"
        )
    shown = f"{unquote(user)}@" if at and colon else "...@" if at else ""
    return Address(
        display_url=f"{scheme}://{shown}{','.join(map(str, servers))}",
        servers=servers,
        username=unquote(user) if colon else "",
        password=unquote(password) if colon else "",
        token=unquote(user) if at and not colon else "",
        creds=options.get("creds"),
        nkey=options.get("nkey"),
        tls=_tls(options) if scheme == "tls" or any(name.startswith("tls_") for name in options) else None,
    )


def _server(text: str) -> Server:
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host:
        raise BrokerUsageError(
            "the broker URL names no host; write nats://HOST:4222, several hosts with commas"
        )
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise BrokerUsageError(f"the broker URL has the port {port!r} for {host}; it must be from 1 to 65535")
    return Server(host, int(port or _PORT))


def _options(query: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, values in parse_qs(query, keep_blank_values=True).items():
        if name not in FILES:
            raise BrokerUsageError(f"the broker URL has the option {name!r}; allowed are {', '.join(FILES)}")
        path = Path(values[-1])
        if not path.is_file():
            raise BrokerUsageError(f"the broker URL names {path} as {name}; there is no such file")
        found[name] = path
    return found


def _tls(options: dict[str, Path]) -> ssl.SSLContext:
    authority = options.get("tls_ca")
    try:
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
        if "tls_cert" in options:
            key = options.get("tls_key")
            context.load_cert_chain(str(options["tls_cert"]), None if key is None else str(key))
    except (OSError, ssl.SSLError) as error:
        raise BrokerUsageError(
            f"the certificates named in the broker URL cannot be loaded: {error}"
        ) from None
    return context
