"""Signing in at a NATS server: what the CONNECT command carries for each kind of credentials."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from worker_runtime.brokers.base import BrokerRefusedError
from worker_runtime.brokers.nats.address import Address

_JWT = re.compile(r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END NATS USER JWT-+")
_SEED = re.compile(r"-----BEGIN USER NKEY SEED-----\s+(\S+)\s+-+END USER NKEY SEED-+")


def credentials(address: Address, nonce: str) -> dict[str, Any]:
    """Files are read anew each time, since a mounted secret may change. Raises BrokerRefusedError."""
    if address.creds is not None:
        text = _read(address.creds)
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if jwt is None or seed is None:
            raise BrokerRefusedError(
                f"the credentials file {address.creds} holds no JWT with a seed; make it with"
                " nsc generate creds"
            )
        return {"jwt": jwt[1], "sig": _signature(address.creds, seed[1], nonce)[1]}
    if address.nkey is not None:
        public, signature = _signature(address.nkey, _read(address.nkey).strip(), nonce)
        return {"nkey": public, "sig": signature}
    if address.token_file is not None:
        return {"auth_token": _word(address.token_file)}
    if address.login is not None:
        user, password = (_word(path) for path in address.login)
        return {"user": user, "pass": password}
    if address.token:
        return {"auth_token": address.token}
    if address.username:
        return {"user": address.username, "pass": address.password}
    return {}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerRefusedError(f"the credentials in {path} cannot be read: {error}") from None


def _word(path: Path) -> str:
    """Editors and shells end a file with a newline that is no part of the secret."""
    return _read(path).rstrip("\r\n")


def _signature(path: Path, seed: str, nonce: str) -> tuple[str, str]:
    # Only here: it brings a whole library of cryptography, and most programs sign in otherwise or use Redis.
    import nkeys

    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        public = pair.public_key.decode()
        signed = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        pair.wipe()
    except Exception as error:  # the library raises its own kinds and those of its decoder
        raise BrokerRefusedError(
            f"the seed in {path} cannot be used ({type(error).__name__}); it is one line that begins with SU"
        ) from None
    return public, signed
