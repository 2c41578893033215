"""What somebody was given in secret is not repeated where many may read it: a status, an event, a report."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from queueworker_operator.api.audits import audit_container, shown
from queueworker_operator.apiserver import ApiServer, Body, NotFoundError, RefusedError, secrets

#: A shorter value would hide words that have nothing to do with it.
SHORTEST = 4
_HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Given:
    """A Secret that a pod is given: by one key, or all of it. `optional`: it need not be there."""

    secret: str
    key: str | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Mask:
    """What is hidden in a text. Not to be shown."""

    words: tuple[str, ...] = field(default=(), repr=False)
    #: Secrets that nobody could read: what they hold cannot be found in a text, so none is shown.
    unread: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Iterable[str | bytes], unread: Iterable[str] = ()) -> Mask:
        """Of values, and of each line of them."""
        words = set[str]()
        for value in values:
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            # What is told is on one line, with single spaces.
            whole, lines = " ".join(text.split()), text.splitlines()
            words |= {whole, *(" ".join(line.split()) for line in lines)}
        long = sorted((one for one in words if len(one) >= SHORTEST), key=lambda one: (-len(one), one))
        return cls(tuple(long), tuple(sorted(set(unread))))

    def told(self, raw: bytes) -> str:
        """As `shown` tells it, without what is hidden."""
        if self.unread and raw.strip():
            return f"(not shown: the Secret {', '.join(self.unread)} cannot be read, and may be in it)"
        return shown(self.hide(" ".join(raw.decode(errors="replace").split())).encode())

    def hide(self, text: str) -> str:
        """A text on one line without it, also where one is cut off at its beginning or its end."""
        for word in self.words:
            text = text.replace(word, _HIDDEN)
        for word in self.words:
            for length in range(len(word) - 1, SHORTEST - 1, -1):
                if text.startswith(word[-length:]):
                    text = _HIDDEN + text[length:]
                if text.endswith(word[:length]):
                    text = text[:-length] + _HIDDEN
        return text


NOTHING = Mask()


def password_in(url: str) -> tuple[str, ...]:
    """As it is written in a URL and as it is sent; empty where there is none."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return ()
    return (password, unquote(password)) if password else ()


def given_to(template: Mapping[str, Any]) -> tuple[Given, ...]:
    """The Secrets that the container of an audit has in its environment, or its pod on a volume."""
    container, spec = audit_container(template), template["spec"]

    def found() -> Iterator[Given]:
        for one in container.get("env") or ():
            if ref := (one.get("valueFrom") or {}).get("secretKeyRef"):
                yield Given(ref["name"], ref["key"], bool(ref.get("optional")))
        for one in container.get("envFrom") or ():
            if ref := one.get("secretRef"):
                yield Given(ref["name"], None, bool(ref.get("optional")))
        for volume in spec.get("volumes") or ():
            sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
            for ref in (one.get("secret") or {} for one in sources):
                if name := ref.get("secretName") or ref.get("name"):
                    yield Given(name, None, bool(ref.get("optional")))

    return tuple(dict.fromkeys(found()))


def plain_passwords(template: Mapping[str, Any]) -> tuple[str, ...]:
    """Those in URLs that the environment has without a Secret, as that of a broker."""
    values = (str(one.get("value") or "") for one in audit_container(template).get("env") or ())
    return tuple(word for value in values if "://" in value for word in password_in(value))


async def mask_of(api: ApiServer, namespace: str, template: Mapping[str, Any]) -> Mask:
    """Of the audit that this template makes. Raises UnavailableError, ApiError."""
    read: dict[str, Body | None] = {}
    values, unread = [*map(str.encode, plain_passwords(template))], set[str]()
    for one in given_to(template):
        if one.secret not in read:
            try:
                read[one.secret] = await api.get(secrets(namespace, one.secret))
            except (NotFoundError, RefusedError) as error:
                read[one.secret] = None
                if not (one.optional and isinstance(error, NotFoundError)):
                    unread.add(one.secret)
        data = (read[one.secret] or {}).get("data") or {}
        for key, encoded in data.items():
            if one.key in (None, key):
                try:
                    value = base64.b64decode(encoded)
                except binascii.Error:
                    continue
                values += [value, *map(str.encode, password_in(value.decode(errors="replace")))]
    return Mask.of(values, unread)


def mask_of_file(secrets: Mapping[str, Mapping[str, str]], template: Mapping[str, Any], url: str) -> Mask:
    """The same where Secrets are documents of a file, and the broker is at `url`."""
    values = [
        value
        for one in given_to(template)
        for key, value in secrets.get(one.secret, {}).items()
        if one.key in (None, key)
    ]
    passwords = [word for value in (*values, url) for word in password_in(value)]
    return Mask.of([*values, *passwords, *plain_passwords(template)])
