"""Log lines for machines (one JSON object each) or for people (one short line each).

Fields: ts, level, msg, logger, revision, worker; queue and message_id while a message is handled, also in
lines that a handler writes itself; error with the traceback of an exception. Nothing is logged for a message
that went well.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import IO, Any

import msgspec

from worker_runtime.brokers.base import Delivery

#: The message that the running handler works on.
current_delivery: ContextVar[Delivery | None] = ContextVar("current_delivery", default=None)

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: Characters of a traceback that are kept. The text of an exception is part of it, and may be megabytes.
LONGEST_TRACEBACK = 20_000

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """Queue, message id and whatever else the caller attached."""
    fields: dict[str, Any] = {}
    delivery = current_delivery.get()
    if delivery is not None:
        fields["queue"] = delivery.queue
        fields["message_id"] = delivery.pid
    fields.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
    return fields


def _capped(text: str) -> str:
    """Both ends: the one says where, the other what."""
    left_out = len(text) - LONGEST_TRACEBACK
    if left_out <= 0:
        return text
    half = LONGEST_TRACEBACK // 2
    return f"{text[:half]}\n... {left_out} characters are left out ...\n{text[-half:]}"


def _shown(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"(a {type(value).__name__} whose text cannot be read)"


class JsonFormatter(logging.Formatter):
    def __init__(self, revision: str, worker: str) -> None:
        super().__init__()
        self._constant = {"revision": revision, "worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "ts": f"{whole}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "logger": record.name,
            **self._constant,
            **_about(record),
        }
        if record.exc_info:
            line["error"] = _capped(self.formatException(record.exc_info))
        try:
            return msgspec.json.encode(line, enc_hook=_shown).decode()
        except (UnicodeEncodeError, TypeError):  # a lone surrogate: the slower one escapes it
            return json.dumps(line, default=_shown, skipkeys=True)


class TextFormatter(logging.Formatter):
    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        about = " ".join(f"{key}={value}" for key, value in _about(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():7} {self._worker}: {record.getMessage()}"
        if about:
            line += f"  [{about}]"
        if record.exc_info:
            line += "\n" + _capped(self.formatException(record.exc_info))
        return line


def configure(log_format: str, level: str, revision: str, worker: str, stream: IO[str] | None = None) -> None:
    """Send all that this process logs to standard error in one format: json, text, or auto (text when a
    person reads along)."""
    stream = stream or sys.stderr
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter(worker) if as_text else JsonFormatter(revision, worker))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_LEVELS[level])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
