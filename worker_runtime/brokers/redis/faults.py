"""What an error of the server means: try elsewhere, try later, or ask a person."""

from __future__ import annotations

from worker_runtime.brokers.base import (
    BrokerError,
    BrokerFullError,
    BrokerRefusedError,
    BrokerUnavailableError,
)
from worker_runtime.brokers.redis.wire import ReplyError

#: The command did not run and the same server may run it soon.
LATER = frozenset({"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"})
#: It takes no writes until somebody makes room.
FULL = frozenset({"OOM", "MISCONF"})
#: The command did not run and another server has to be asked.
ELSEWHERE = frozenset({"MOVED", "ASK", "READONLY"})

_LATER_TEXT = {
    "LOADING": "it is still loading its data; it will serve when that is done",
    "BUSY": "a script has been running for too long; it blocks everybody until it ends",
    "READONLY": "it is a read-only replica; point the URL at the primary, or wait for the failover to end",
    "CLUSTERDOWN": "the cluster does not serve all slots; check CLUSTER INFO",
    "MASTERDOWN": "it is a replica that has lost its primary; point the URL at the primary",
    "TRYAGAIN": "the slot is moving and only some of its keys are there yet; it serves when the move is over",
    "UNBLOCKED": "its role changed while this client waited; the new primary is asked for",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write asks for",
    "MOVED": "the key is on another node of a Redis Cluster; use a redis+cluster:// URL. With one, its nodes"
    " do not agree yet on who has the slot",
    "ASK": "it is a node of a Redis Cluster that is moving the slot; use a redis+cluster:// URL",
}

_REFUSED_TEXT = {
    "NOAUTH": "it wants a password and the URL has none; put it into the URL or the secret",
    "WRONGPASS": "the user name or the password in the URL is wrong",
    "NOPERM": "the ACL of this user does not allow what queues need; allow the commands and the keys"
    " of the namespace",
    "OOM": "it is full (maxmemory) and takes no more data; raise maxmemory or remove data",
    "MISCONF": "it refuses writes since it cannot save to disk; repair its disk or its settings",
    "WRONGTYPE": "a key of this queue holds another type of data;"
    " rename or delete it, or use another namespace",
    "QWTYPE": "rename or delete that key, or use another namespace",
    "QWNUMBER": "set that value to a whole number or delete it",
    "UNKNOWN": "what answers there holds no queues, or hides that command; a Sentinel needs a redis+sentinel://"
    " URL with the name of the primary, another server a port of Redis 6.2 or newer",
    "CROSSSLOT": "the keys of this namespace are in different slots of the cluster; put a hash tag into the"
    " namespace, such as {utopia-queue}",
}


def explained(error: ReplyError, server: str, doing: str) -> BrokerError:
    """Turn an error reply into one that a person can act on."""
    code, text = error.code, str(error)
    if text.startswith(("ERR QWTYPE ", "ERR QWNUMBER ")):
        # Dragonfly puts ERR before every error that a script returns.
        text = text.removeprefix("ERR ")
        code = text.split(" ", 1)[0]
    if "unknown command" in text:
        # It goes on with the arguments, which are what somebody published.
        text, code = text.split(", with args", 1)[0], "UNKNOWN"
    if "unauthenticated" in text:
        # What a long command gets instead of NOAUTH.
        code = "NOAUTH"
    if code in LATER or code in ELSEWHERE:
        return BrokerUnavailableError(
            f"Redis at {server} cannot {doing} now ({text}): {_LATER_TEXT.get(code, code)}"
        )
    if "max number of clients" in text:
        return BrokerUnavailableError(
            f"Redis at {server} cannot {doing} now ({text}): raise maxclients or run fewer workers"
        )
    if code in {"QWTYPE", "QWNUMBER"}:
        return BrokerRefusedError(
            f"Redis at {server} cannot {doing}: the key {text.removeprefix(code + ' ')};"
            f" {_REFUSED_TEXT[code]}"
        )
    if "AUTH" in text and "without any password configured" in text:
        hint = "the URL has a password but the server has none; remove it from the URL"
    elif "DB index" in text:
        hint = "the database in the URL does not exist on this server"
    else:
        hint = _REFUSED_TEXT.get(code, "this is not expected; read the server's log")
    kind = BrokerFullError if code in FULL else BrokerRefusedError
    return kind(f"Redis at {server} refuses to {doing} ({text}): {hint}")
