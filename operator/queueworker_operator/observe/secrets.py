"""The broker's URL: from the spec, or from one named Secret, which is read and never listed."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from queueworker_operator.api.types import QueueWorkerSpec, SecretRef
from queueworker_operator.apiserver import ApiServer, NotFoundError, RefusedError, secrets
from queueworker_operator.plan.facts import BrokerVerdict


@dataclass(frozen=True, slots=True)
class NoUrl:
    """There is no usable URL; `message` says what was read and the way out, never a secret."""

    verdict: BrokerVerdict
    message: str


async def broker_url(api: ApiServer, namespace: str, spec: QueueWorkerSpec) -> str | NoUrl:
    """The URL that workers get. Raises UnavailableError when the API server does not answer."""
    redis = spec.broker.redis
    if redis is None:
        return NoUrl(BrokerVerdict.INVALID_URL, "spec.broker names no broker: add broker.redis.")
    if redis.secret_ref is None:
        return redis.url or ""
    return await _from_secret(api, namespace, redis.secret_ref)


async def _from_secret(api: ApiServer, namespace: str, ref: SecretRef) -> str | NoUrl:
    def missing(text: str) -> NoUrl:
        return NoUrl(BrokerVerdict.SECRET_NOT_FOUND, text)

    where = f"the Secret {namespace}/{ref.name}"
    recipe = f"`kubectl create secret generic {ref.name} --from-literal={ref.key}=redis://...`"
    try:
        body = await api.get(secrets(namespace, ref.name))
    except NotFoundError:
        return missing(
            f"{where} does not exist: create it with {recipe}, or correct spec.broker.redis.secretRef."
        )
    except RefusedError as error:
        return missing(f"{where} may not be read by the operator: {error.message}")
    data = body.get("data") or {}
    if ref.key not in data:
        keys = ", ".join(sorted(data)) or "none"
        return missing(
            f"{where} has no key {ref.key!r} (its keys: {keys}): add it, or set "
            "spec.broker.redis.secretRef.key."
        )
    try:
        url = base64.b64decode(data[ref.key], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return missing(f"the key {ref.key!r} of {where} is not text: store the URL as UTF-8.")
    if not url:
        return missing(f"the key {ref.key!r} of {where} is empty: store the broker's URL in it.")
    if url != url.strip():
        return NoUrl(
            BrokerVerdict.INVALID_URL,
            f"the key {ref.key!r} of {where} begins or ends with a space or a newline, which workers would "
            f"get too: create it anew with {recipe}.",
        )
    return url
