"""From a pod template to the command and the environment of one local process, a worker or an audit.

One container of it decides: its `command` (absent: the image's entrypoint, which is `queueworker`), its
`args` and its `env`. The image, volumes, resources and the other containers have no meaning for a process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queueworker_operator.api.audits import audit_container
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.template import termination_grace_seconds, worker_container

#: Secret name -> key -> value, decoded.
Secrets = Mapping[str, Mapping[str, str]]

#: `$(NAME)`; a doubled dollar sign keeps it as it is.
_REFERENCE = re.compile(r"\$(\$\([^()]*\))|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class TemplateRefusedError(Exception):
    """The template asks for something that a local process cannot have. The text names it and the way out."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How one worker is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    #: Seconds between SIGTERM and SIGKILL.
    grace: int


@dataclass(frozen=True, slots=True)
class Place:
    """What a pod would be told of itself: its name, its namespace, its admin port."""

    name: str
    namespace: str
    admin_port: int


def launch_of(
    revision: Revision, broker_url: str, secrets: Secrets, place: Place, base: Mapping[str, str] | None = None
) -> Launch:
    """The command and the whole environment. `base` is what the process inherits (default: ours).

    Raises TemplateRefusedError.
    """
    managed = {
        "QUEUEWORKER_BROKER_URL": broker_url,
        "QUEUEWORKER_NAMESPACE": revision.broker.namespace,
        "QUEUEWORKER_QUEUE": revision.queue,
        "QUEUEWORKER_COROUTINES": str(revision.coroutines),
        "QUEUEWORKER_PREFETCH": str(revision.prefetch),
        "QUEUEWORKER_REVISION": revision.name,
        "QUEUEWORKER_SHUTDOWN_SECONDS": str(revision.shutdown_seconds),
        "QUEUEWORKER_ADMIN_PORT": str(place.admin_port),
    }
    grace = termination_grace_seconds(revision.template, revision.shutdown_seconds)
    return _launch(worker_container(revision.template), managed, secrets, place, grace, base)


def audit_launch_of(
    template: Mapping[str, Any],
    variables: Mapping[str, str],
    secrets: Secrets,
    place: Place,
    base: Mapping[str, str] | None = None,
) -> Launch:
    """The same of a container that counts totals. `variables` are set whatever the template says. Raises
    TemplateRefusedError."""
    return _launch(audit_container(template), variables, secrets, place, 0, base)


def _launch(
    container: Mapping[str, Any],
    managed: Mapping[str, str],
    secrets: Secrets,
    place: Place,
    grace: int,
    base: Mapping[str, str] | None,
) -> Launch:
    given = _environment(container, secrets, place)
    inherited = {
        key: value for key, value in (base or os.environ).items() if not key.startswith("QUEUEWORKER_")
    }
    # A container finds its programs in the image; here they are beside the interpreter that runs us.
    inherited["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    defaults = {
        "PYTHONUNBUFFERED": "1",
        "QUEUEWORKER_ADMIN_HOST": "127.0.0.1",
        "QUEUEWORKER_LOG_FORMAT": "text",
    }
    known = given | dict(managed)
    env = inherited | defaults | known
    argv = [_expand(text, known) for text in _command(container)]
    return Launch(tuple(argv), env, grace)


def _command(container: Mapping[str, Any]) -> list[str]:
    command, args = container.get("command") or [], container.get("args") or []
    for field, value in (("command", command), ("args", args)):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise TemplateRefusedError(
                f"container {container['name']}: {field} must be a list of strings, read {value!r:.80}."
            )
    if not command and not args:
        raise TemplateRefusedError(
            f"container {container['name']} has neither command nor args, and a local process has no image "
            "that could say what to run: add args such as [run, MODULE:APP]."
        )
    return [*(command or [sys.executable, "-m", "worker_runtime.cli.main"]), *args]


def _environment(container: Mapping[str, Any], secrets: Secrets, place: Place) -> dict[str, str]:
    if container.get("envFrom"):
        raise TemplateRefusedError(
            f"container {container['name']} uses envFrom, which local mode does not know: "
            "list the variables under env."
        )
    env: dict[str, str] = {}
    for entry in container.get("env") or []:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            raise TemplateRefusedError(
                f"container {container['name']}: each entry of env needs a name, read {entry!r:.80}."
            )
        value = entry.get("value", "")
        if not isinstance(value, str):
            raise TemplateRefusedError(
                f"container {container['name']}: env {name} must be a string, read {value!r:.80}: "
                "put it in quotes."
            )
        if "valueFrom" in entry:
            found = _value_from(
                f"container {container['name']}: env {name}", entry["valueFrom"], secrets, place
            )
            if found is None:
                continue
            env[name] = found
        else:
            env[name] = _expand(value, env)
    return env


def _value_from(where: str, source: Any, secrets: Secrets, place: Place) -> str | None:
    """The value; None for an optional Secret that is not there."""
    match source:
        case {"secretKeyRef": {"name": str(name), "key": str(key), **rest}}:
            if name in secrets and key in secrets[name]:
                return secrets[name][key]
            if rest.get("optional") is True:
                return None
            lacks = f"has no key {key}" if name in secrets else "is not in the file"
            raise TemplateRefusedError(
                f"{where} takes its value from Secret {name}, which {lacks}: "
                f"add a Secret document {name} with {key} to the file, or give a plain value."
            )
        case {"fieldRef": {"fieldPath": "metadata.name"}}:
            return place.name
        case {"fieldRef": {"fieldPath": "metadata.namespace"}}:
            return place.namespace
    kind = ", ".join(source) if isinstance(source, dict) else repr(source)
    raise TemplateRefusedError(
        f"{where} takes its value from {kind}, and local mode knows value, secretKeyRef and the fieldRefs "
        "metadata.name and metadata.namespace: give a plain value."
    )


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: unknown names stay as they are."""

    def one(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        return escaped if escaped else known.get(name, match.group(0))

    return _REFERENCE.sub(one, text)
