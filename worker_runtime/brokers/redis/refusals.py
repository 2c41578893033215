"""Why a server that answers takes no writes, with what it says of itself."""

from __future__ import annotations

import re

from worker_runtime.brokers.redis.faults import FULL, explained
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.wire import ReplyError

#: Answers to a write that mean every write.
REFUSES_WRITES = FULL | {"READONLY", "NOREPLICAS"}


async def refused_writes(refusal: ReplyError, link: Link) -> str:
    """One sentence, the same as long as the same is so."""
    text = f"{explained(refusal, link.name, 'take writes')}."
    if refusal.code != "OOM":
        return text
    (info,) = await link.batch([("INFO", "memory")], "describe its memory")
    # A user who may not ask is told what the server said.
    return text if isinstance(info, ReplyError) else f"{text}{_memory(info.decode('utf-8', 'replace'))}"


def _memory(info: str) -> str:
    told = dict(re.findall(r"^(\w+):([^\r\n]+)", info, re.MULTILINE))
    used, most = told.get("used_memory", ""), told.get("maxmemory", "")
    if not (used.isdigit() and most.isdigit() and int(most)):
        return ""
    # In tenths, and not below what the refusal has proven: the exact number changes with each look.
    share = max(100, int(used) * 10 // int(most) * 10)
    policy = f", policy {told['maxmemory_policy']}" if "maxmemory_policy" in told else ""
    return f" Read: {share} % of maxmemory {told.get('maxmemory_human', most)} is used{policy}."
