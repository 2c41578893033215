"""How a client shows who it is by a certificate, and why one cannot be used."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from queueworker_operator.observe.access import write_files

_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17


class UnusableCertificateError(ValueError):
    """`file` (tls.crt or tls.key) cannot be used; the text says why, and what belongs there."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(why)
        self.file = file


def show_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes, now: datetime) -> None:
    """Have connections show this certificate (PEM, with those between it and its authority behind it).

    Raises UnusableCertificateError.
    """
    try:
        begins, ends = validity(ssl.PEM_cert_to_DER_cert(_first(certificate)))
    except (ValueError, IndexError):
        raise UnusableCertificateError("tls.crt", "is no certificate as PEM: store the client's") from None
    if now > ends:
        raise UnusableCertificateError("tls.crt", f"expired at {ends:%Y-%m-%d %H:%M:%S} UTC: store a new one")
    if now < begins:
        why = f"is not valid before {begins:%Y-%m-%d %H:%M:%S} UTC: store one that is, or set the clock"
        raise UnusableCertificateError("tls.crt", why)
    with TemporaryDirectory(prefix="queueworker-credentials-") as directory:
        place = Path(directory)
        write_files(place, (("tls.crt", certificate), ("tls.key", key)))
        try:
            # Nobody is there to be asked for a passphrase.
            context.load_cert_chain(place / "tls.crt", place / "tls.key", password="")
        except (ValueError, ssl.SSLError) as error:
            if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
                why = "is not the key of the certificate: store the two that belong together"
            else:
                why = "is no private key as PEM without a passphrase: store the one of the certificate"
            raise UnusableCertificateError("tls.key", why) from None


def validity(der: bytes) -> tuple[datetime, datetime]:
    """From when until when a certificate (DER) is valid: RFC 5280, 4.1. Raises ValueError or IndexError when
    it is none."""
    outer, _ = _value(der, _SEQUENCE)
    rest, _ = _value(outer, _SEQUENCE)
    if rest[0] == _VERSION:
        _, rest = _value(rest, _VERSION)
    for _ in ("serial number", "signature", "issuer"):
        _, rest = _value(rest)
    times, _ = _value(rest, _SEQUENCE)
    begins, rest = _time(times)
    ends, _ = _time(rest)
    return begins, ends


def _first(pem: bytes) -> str:
    """The client's own is the first one."""
    text = pem.decode("ascii")
    begin, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER)
    return text[begin : end + len(ssl.PEM_FOOTER)]


def _value(der: bytes, tag: int | None = None) -> tuple[bytes, bytes]:
    """The content of the element that comes first, and what follows it."""
    if tag is not None and der[0] != tag:
        raise ValueError(f"tag {der[0]:#x} where {tag:#x} belongs")
    length, begin = der[1], 2
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(der[2:begin])
    if len(der) < begin + length:
        raise ValueError("it is cut off")
    return der[begin : begin + length], der[begin + length :]


def _time(der: bytes) -> tuple[datetime, bytes]:
    raw, rest = _value(der)
    form = "%y%m%d%H%M%SZ" if der[0] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(raw.decode("ascii"), form).replace(tzinfo=UTC), rest
