"""Which revisions the other QueueWorkers on the same queue have: a fence on one of those stops them, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

#: Queue, and the broker as far as two specs can be told to name the same one.
_Place = tuple[str, str, str]


class Neighbours:
    """QueueWorkers as they were listed, or looked at since. Only what decides is kept of them."""

    def __init__(self) -> None:
        self._there: dict[_Place, dict[tuple[str, str], frozenset[str]]] = defaultdict(dict)

    def add(self, body: Mapping[str, Any]) -> None:
        """One as it was listed, or looked at since."""
        rows = (body.get("status") or {}).get("revisions") or ()
        names = frozenset(str(row["name"]) for row in rows if row.get("replicas"))
        there = self._there[_place(body)]
        if names and "deletionTimestamp" not in body["metadata"]:
            there[_key(body)] = names
        else:
            there.pop(_key(body), None)

    def revisions_beside(self, body: Mapping[str, Any]) -> frozenset[str]:
        """Revisions that others than this QueueWorker have workers of, on the same queue."""
        beside = self._there.get(_place(body), {})
        return frozenset[str]().union(*(names for key, names in beside.items() if key != _key(body)))


def _key(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _place(body: Mapping[str, Any]) -> _Place:
    """A Secret, and a host without a dot, mean something else in another namespace."""
    spec = body.get("spec") or {}
    broker = spec.get("broker") or {}
    member = broker.get("redis") or broker.get("nats") or {}
    url = str(member.get("url") or "")
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # such a URL reaches no broker
        host = ""
    namespace = "" if "." in host else str(body["metadata"]["namespace"])
    return namespace, url, str((spec.get("queue") or {}).get("name"))
