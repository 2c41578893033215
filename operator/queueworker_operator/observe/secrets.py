"""How the broker is reached, and as whom: what the spec says, and the Secrets that it names, which are read
and never listed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from queueworker_operator.api.credentials import SecretFile
from queueworker_operator.api.schema import SecretRef
from queueworker_operator.api.types import QueueWorkerSpec
from queueworker_operator.apiserver import ApiServer, Body, NotFoundError, RefusedError, secrets
from queueworker_operator.observe.access import Access
from queueworker_operator.plan.facts import BrokerVerdict

#: What a file is called, and its content.
Files = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class NoUrl:
    """There is no usable URL; `message` says what was read and the way out, never a secret."""

    verdict: BrokerVerdict
    message: str


async def broker_access(api: ApiServer, namespace: str, spec: QueueWorkerSpec) -> Access | NoUrl:
    """The URL and the files that workers get. Raises UnavailableError when the API server does not answer."""
    broker = spec.broker
    read: dict[str, Body | NoUrl] = {}
    if broker.secret_ref is None:
        url: str | NoUrl = broker.url or ""
    else:
        scheme = "redis" if broker.nats is None else "nats"
        url = await _url(api, namespace, broker.secret_ref, f"{broker.path}.secretRef", scheme, read)
    if isinstance(url, NoUrl):
        return url
    files = await _files(api, namespace, broker.nats.files() if broker.nats else (), read)
    return files if isinstance(files, NoUrl) else Access(url, files)


async def secret_files(api: ApiServer, namespace: str, wanted: Iterable[SecretFile]) -> Files | str:
    """What Secrets hold, or what is wrong with them and the way out. Raises UnavailableError."""
    found = await _files(api, namespace, wanted, {})
    return found.message if isinstance(found, NoUrl) else found


def files_in(secrets: Mapping[str, Mapping[str, str]], wanted: Iterable[SecretFile]) -> Files | str:
    """The same of the Secrets that are documents of a file, by name and key."""
    files = []
    for one in wanted:
        value = secrets.get(one.secret, {}).get(one.key, "")
        if not value:
            keys = ", ".join(sorted(secrets.get(one.secret, {}))) or "no keys"
            lacks = f"has no value under {one.key} (read {keys})" if one.secret in secrets else "is not there"
            return (
                f"{one.path} takes {one.file} from Secret {one.secret} of the file, which {lacks}: add it, "
                f"or correct {one.path}."
            )
        files.append((one.file, value.encode()))
    return tuple(files)


async def _files(
    api: ApiServer, namespace: str, wanted: Iterable[SecretFile], read: dict[str, Body | NoUrl]
) -> Files | NoUrl:
    files = []
    for file in wanted:
        content = await _value(api, namespace, file.secret, file.key, file.path, file.file, read)
        if isinstance(content, NoUrl):
            return content
        files.append((file.file, content))
    return tuple(files)


async def _value(
    api: ApiServer, namespace: str, name: str, key: str, path: str, kind: str, read: dict[str, Body | NoUrl]
) -> bytes | NoUrl:
    """One key of a Secret. `path` names the field that refers to it, `kind` what belongs there; `read` keeps
    the Secrets of this look."""

    def missing(text: str) -> NoUrl:
        return NoUrl(BrokerVerdict.SECRET_NOT_FOUND, text)

    where = f"the Secret {namespace}/{name}"
    if name not in read:
        try:
            read[name] = await api.get(secrets(namespace, name))
        except NotFoundError:
            recipe = f"`kubectl create secret generic {name} {_recipe(key, kind)}`"
            read[name] = missing(f"{where} does not exist: create it with {recipe}, or correct {path}.")
        except RefusedError as error:
            read[name] = missing(f"{where} may not be read by the operator: {error.message}")
    body = read[name]
    if isinstance(body, NoUrl):
        return body
    data = body.get("data") or {}
    if key not in data:
        keys = ", ".join(sorted(data)) or "none"
        return missing(f"{where} has no key {key!r} (its keys: {keys}): add it, or correct {path}.")
    try:
        content = base64.b64decode(data[key], validate=True)
    except binascii.Error:
        return missing(f"the key {key!r} of {where} is not base64: store it anew.")
    return content or missing(f"the key {key!r} of {where} is empty: store what belongs there.")


def _recipe(key: str, kind: str) -> str:
    return f"--from-literal={key}={kind}" if "://" in kind else f"--from-file={key}=FILE"


async def _url(
    api: ApiServer, namespace: str, ref: SecretRef, path: str, scheme: str, read: dict[str, Body | NoUrl]
) -> str | NoUrl:
    where = f"the Secret {namespace}/{ref.name}"
    recipe = f"`kubectl create secret generic {ref.name} {_recipe(ref.key, f'{scheme}://...')}`"
    content = await _value(api, namespace, ref.name, ref.key, path, f"{scheme}://...", read)
    if isinstance(content, NoUrl):
        return content
    try:
        url = content.decode()
    except UnicodeDecodeError:
        text = f"the key {ref.key!r} of {where} is not text: store the URL as UTF-8."
        return NoUrl(BrokerVerdict.SECRET_NOT_FOUND, text)
    if url != url.strip():
        return NoUrl(
            BrokerVerdict.INVALID_URL,
            f"the key {ref.key!r} of {where} begins or ends with a space or a newline, which workers would "
            f"get too: create it anew with {recipe}.",
        )
    return url
