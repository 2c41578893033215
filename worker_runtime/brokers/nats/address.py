"""What a NATS URL says: which servers, as whom, over TLS or not.

Credentials may lie in a directory, as a Secret is mounted: by `?credentials=DIRECTORY`, or by the setting
QUEUEWORKER_NATS_CREDENTIALS. Its files are read anew for each connection, since what is mounted may change.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

from worker_runtime.brokers.base import BrokerUsageError, CredentialsUnusableError

SCHEMES = ("nats://", "tls://")
#: Options after the question mark, each a path of a file.
FILES = ("creds", "nkey", "tls_ca", "tls_cert", "tls_key")
#: The option that names a directory, and the files that it may hold: the option that each stands for. The
#: names are those of Secrets of the types kubernetes.io/basic-auth and kubernetes.io/tls.
CREDENTIALS = "credentials"
DIRECTORY = {
    "creds": "creds",
    "nkey": "nkey",
    "token": "token",
    "username": "username",
    "password": "password",
    "ca.crt": "tls_ca",
    "tls.crt": "tls_cert",
    "tls.key": "tls_key",
}
_PORT = 4222


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of the encrypted connection. None: the system's authorities; no certificate of our own."""

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Made anew for each connection. Raises CredentialsUnusableError."""
        try:
            context = ssl.create_default_context(
                cafile=None if self.authority is None else str(self.authority)
            )
            if self.certificate is not None:
                context.load_cert_chain(str(self.certificate), None if self.key is None else str(self.key))
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(str(one) for one in (self.authority, self.certificate, self.key) if one)
            raise CredentialsUnusableError(
                f"the certificates of the broker ({named}) cannot be loaded: {error}"
            ) from None
        return context


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
    #: A file with a token; files with a user's name and password.
    token_file: Path | None = None
    login: tuple[Path, Path] | None = None
    #: Set when the connection must be encrypted.
    tls: Tls | None = None


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
    if ("username" in options) != ("password" in options):
        there = options.get("username") or options["password"]
        raise CredentialsUnusableError(
            f"{there.parent} has a {there.name} and not the other one of username and password; add it"
        )
    ways: list[str] = [name for name in ("creds", "nkey", "token", "username") if name in options]
    ways += ["a user and password in it"] if at and colon else ["a token in it"] if at else []
    if len(ways) > 1:
        raise CredentialsUnusableError(
            f"the broker URL signs in twice, by {' and by '.join(ways)}; leave all but one of them out"
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
        token_file=options.get("token"),
        login=(options["username"], options["password"]) if "username" in options else None,
        tls=_tls(options) if scheme == "tls" or any(name.startswith("tls_") for name in options) else None,
    )


def with_credentials(url: str, directory: str) -> str:
    """The URL of a NATS broker with a directory of credentials; any other URL, and one that names such a
    directory itself, as it is."""
    scheme, separator, rest = url.partition("://")
    _, question, query = rest.partition("?")
    if not separator or f"{scheme}://" not in SCHEMES or CREDENTIALS in parse_qs(query):
        return url
    return f"{url}{'&' if question else '?'}{CREDENTIALS}={quote(directory)}"


def _server(text: str) -> Server:
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if "/" in text:
        path = text[text.index("/") :]
        raise BrokerUsageError(
            f"the broker URL has the path {path!r}, and NATS has no numbered databases; leave it out, and"
            " give each namespace an account of its own"
        )
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
        path = Path(values[-1])
        if name == CREDENTIALS:
            found |= _in_directory(path)
            continue
        if name not in FILES:
            allowed = ", ".join((*FILES, CREDENTIALS))
            raise BrokerUsageError(f"the broker URL has the option {name!r}; allowed are {allowed}")
        if not path.is_file():
            raise BrokerUsageError(f"the broker URL names {path} as {name}; there is no such file")
        found[name] = path
    return found


def _in_directory(directory: Path) -> dict[str, Path]:
    try:
        held = {path.name for path in directory.iterdir()}
    except OSError as error:
        raise CredentialsUnusableError(
            f"the directory of NATS credentials {directory} cannot be read: {error.strerror or error}"
        ) from None
    found = {option: directory / name for name, option in DIRECTORY.items() if name in held}
    if not found:
        raise CredentialsUnusableError(
            f"the directory of NATS credentials {directory} has none of {', '.join(DIRECTORY)}; put the ones"
            " there that the server asks for"
        )
    return found


def _tls(options: dict[str, Path]) -> Tls:
    tls = Tls(options.get("tls_ca"), options.get("tls_cert"), options.get("tls_key"))
    tls.context()  # told here rather than at each connection
    return tls
