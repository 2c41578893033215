"""Read the file of `queueworker up`: QueueWorker and Secret documents, by the rules of the API server."""

from __future__ import annotations

import base64
import binascii
import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from queueworker_operator.api.names import GROUP, KIND
from queueworker_operator.api.parse import NotAQueueWorkerError, may_be_secret, parse
from queueworker_operator.api.types import InvalidQueueWorker, Problem, QueueWorker
from queueworker_operator.run.local_yaml import LARGEST, UnusableTextError, documents


class BadFileError(Exception):
    """The file as a whole cannot be used. The text names file, document, what was read and the way out."""


@dataclass(frozen=True, slots=True)
class Document:
    """One QueueWorker document."""

    #: Names it for people: file, number of the document, kind and name.
    where: str
    body: Mapping[str, Any]
    parsed: QueueWorker | InvalidQueueWorker

    def complaints(self) -> list[str]:
        """One line per problem; none when it can be used."""
        if isinstance(self.parsed, QueueWorker):
            return []
        return [f"{self.where}: {problem}" for problem in self.parsed.problems]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """What the file says."""

    #: By name, in the order of the file.
    resources: Mapping[str, Document] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Documents of other kinds, named for people.
    left_out: tuple[str, ...] = ()


def read_text(path: Path) -> str:
    """The file's text, with line ends of one kind. Raises BadFileError when it cannot be read, is too large,
    or is empty as while it is written."""
    return read_raw(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_raw(path: Path) -> bytes:
    """The bytes of a text. Raises BadFileError, as `read_text`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            # A pipe is empty when it is read again, and may keep its reader waiting.
            raise BadFileError(
                f"{path}: is no regular file, which could be read again and again: give one with -f"
            )
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise BadFileError(
                f"{path}: is larger than {LARGEST >> 20} MiB, the most that is read: split it into "
                "files with a queueworker up each"
            )
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise BadFileError(f"{path}: there is no such file: give one with -f, or put it back") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    if not text.strip():
        raise BadFileError(
            f"{path}: the file is empty: write a QueueWorker document "
            "(a file with nothing but '---' asks for no workers at all)"
        )
    return raw


def digest(text: str) -> str:
    """Names a text of the file: up.json says which one is in force."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse_text(path: Path, text: str) -> LocalFile:
    """Every document. Raises BadFileError for what is no document, has no name, or comes twice."""
    try:
        bodies = documents(text)
    except UnusableTextError as error:
        raise BadFileError(f"{path}: {error}") from None
    resources: dict[str, Document] = {}
    secrets: dict[str, Mapping[str, str]] = {}
    left_out: list[str] = []
    for number, body in enumerate(bodies, 1):
        if body is None:
            continue
        where = f"{path}, document {number}"
        if not isinstance(body, dict):
            raise BadFileError(f"{where}: expected a mapping with apiVersion and kind, read {body!r:.60}")
        kind = body.get("kind")
        if kind == "Secret":
            name, values = _secret(where, body)
            secrets[name] = values
        elif kind == KIND or kind is None:
            document = _queueworker(where, body)
            name = document.parsed.metadata.name
            if name in resources:
                raise BadFileError(
                    f"{document.where}: metadata.name: {name!r} was used by an earlier document "
                    "of the file: give each QueueWorker a name of its own"
                )
            resources[name] = document
        elif str(body.get("apiVersion")).startswith(f"{GROUP}/"):
            # Left out, it would look as if its QueueWorker had been deleted.
            raise BadFileError(f"{where}: kind: expected {KIND}, read {kind!r:.60}")
        elif _holds_ours(body):
            raise BadFileError(
                f"{where}: items: this {kind} holds a {KIND}: write each as a document of its own, with --- "
                "between them"
            )
        else:
            metadata = body.get("metadata")
            label = metadata.get("name", "") if isinstance(metadata, dict) else ""
            left_out.append(f"document {number} ({kind} {label})")
    return LocalFile(resources, secrets, tuple(left_out))


def _holds_ours(body: Mapping[str, Any]) -> bool:
    items = body.get("items")
    return isinstance(items, list) and any(isinstance(one, dict) and one.get("kind") == KIND for one in items)


def _queueworker(where: str, body: dict[str, Any]) -> Document:
    # The status is ours to know; a copy in the file (kubectl get -o yaml) would be an old one.
    body = {key: value for key, value in body.items() if key != "status"}
    try:
        parsed = parse(body)
    except NotAQueueWorkerError as error:
        raise BadFileError(f"{where}: {error}") from None
    where = f"{where} ({KIND} {parsed.metadata.name})"
    if isinstance(parsed, InvalidQueueWorker):
        parsed = with_values(parsed, body)
    return Document(where, body, parsed)


def with_values(invalid: InvalidQueueWorker, body: Mapping[str, Any]) -> InvalidQueueWorker:
    """Each problem with the value that was read, unless it says so already or might be a secret."""
    return replace(invalid, problems=tuple(_with_value(problem, body) for problem in invalid.problems))


def _with_value(problem: Problem, body: Mapping[str, Any]) -> Problem:
    if "(read " in problem.message or may_be_secret(problem.path):
        return problem
    value: Any = body
    for part in problem.path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return problem
    if isinstance(value, (dict, list)):
        return problem
    return Problem(problem.path, f"{problem.message} (read {value!r:.80})")


def _secret(where: str, body: dict[str, Any]) -> tuple[str, dict[str, str]]:
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise BadFileError(f"{where} (Secret): metadata.name is required: add it")
    where = f"{where} (Secret {name})"
    values: dict[str, str] = {}
    for section in ("data", "stringData"):
        entries = body.get(section) or {}
        if not isinstance(entries, dict):
            raise BadFileError(f"{where}: {section}: expected a mapping of keys to strings")
        for key, value in entries.items():
            if not isinstance(value, str):
                raise BadFileError(
                    f"{where}: {section}.{key}: expected a string, read a {type(value).__name__}"
                )
            values[key] = _decoded(where, key, value) if section == "data" else value
    return name, values


def _decoded(where: str, key: str, value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode().rstrip("\n")
    except (binascii.Error, UnicodeDecodeError):
        raise BadFileError(
            f"{where}: data.{key}: is not base64 of a text: encode it, or write it plainly under stringData"
        ) from None
