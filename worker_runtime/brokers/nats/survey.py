"""What somebody learns of a queue who may only ask: requests of the kinds STREAM.INFO and CONSUMER.INFO,
nothing else. For an operator, whose user needs no right to take, to settle or to change anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from worker_runtime.brokers.base import BrokerUnavailableError
from worker_runtime.brokers.nats import api, topology
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import DURABLE, PRIORITY_DURABLE, QueueNames
from worker_runtime.brokers.nats.topology import Plan

_NANO = 1_000_000_000
#: Options of a plan: the key of the configuration that each becomes, and whether it is a time.
_OF_STREAMS = {
    "storage": ("storage", False),
    "replicas": ("num_replicas", False),
    "max_age": ("max_age", True),
}
_OF_CONSUMER = {
    "ack_wait": ("ack_wait", True),
    "max_deliver": ("max_deliver", False),
    "max_ack_pending": ("max_ack_pending", False),
}
#: Tries to get counts that belong together while work moves.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class PriorityReading:
    """The subject of older producers that no worker of this package takes from, at one moment."""

    subject: str
    #: Not handed out yet; handed out and not settled.
    pending: int
    unacknowledged: int
    #: Messages that the stream holds on the subject. It alone counts those that were handed out too often.
    stored: int
    #: The last message that was handed out, as a place in the stream: grows when somebody takes one.
    last_sequence: int
    #: The last message of the stream, on whatever subject: what is handed out behind it was published later.
    stream_sequence: int
    #: Seconds after which the consumer hands work out again; 0 when there is no consumer.
    ack_wait: float
    #: Whether older workers have made their consumer. Without it nobody takes what is stored.
    consumed: bool

    @property
    def stuck(self) -> int:
        """Stored, and neither pending nor in work: nobody will be given these."""
        return max(0, self.stored - self.pending - self.unacknowledged) if self.consumed else 0

    @property
    def empty(self) -> bool:
        """Nothing is there in any form. It may still come back: see `ack_wait`."""
        return not (self.pending or self.unacknowledged or self.stored)


async def read_priority(link: Link, names: QueueNames) -> PriorityReading:
    """Read the priority subject without taking from it. What was never made counts as empty. Raises
    BrokerError, also when the counts move so fast that they never belong together."""
    for _ in range(_TRIES):
        before = await api.consumer_info(link, names.stream, PRIORITY_DURABLE)
        info = await api.stream_info(link, names.stream, names.priority)
        after = await api.consumer_info(link, names.stream, PRIORITY_DURABLE)
        if _marks(before) != _marks(after):
            continue
        state = {} if info is None else info["state"]
        last = int(state.get("last_seq") or 0)
        stored = int((state.get("subjects") or {}).get(names.priority, 0))
        if after is None:
            return PriorityReading(names.priority, stored, 0, stored, 0, last, 0.0, consumed=False)
        return PriorityReading(
            names.priority,
            int(after["num_pending"]),
            int(after["num_ack_pending"]),
            stored,
            int(after["delivered"]["stream_seq"]),
            last,
            topology.read_lease(after).ack_wait,
            consumed=True,
        )
    raise BrokerUnavailableError(
        f"NATS at {link.name}: the counts of {names.priority} changed between {_TRIES} looks; look again"
    )


def _marks(info: Mapping[str, Any] | None) -> object:
    if info is None:
        return None
    return info["num_pending"], info["num_ack_pending"], info["delivered"], info["ack_floor"]


async def differences(link: Link, names: QueueNames, wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """How the queue differs from the named options of a `Plan`; the other options are of no interest. One
    text for each difference. Raises BrokerError."""
    plan = replace(Plan(), **wanted)
    found: list[str] = []
    for config in topology.streams(names, plan):
        info = await api.stream_info(link, config["name"])
        held = {} if info is None else info["config"]
        found += _compared(f"the stream {config['name']}", held, config, wanted, _OF_STREAMS)
    info = await api.consumer_info(link, names.stream, DURABLE)
    held = {} if info is None else info["config"]
    of = f"the consumer {DURABLE} of {names.stream}"
    found += _compared(of, held, topology.consumer(names, plan), wanted, _OF_CONSUMER)
    return tuple(found)


def _compared(
    what: str,
    held: Mapping[str, Any],
    config: Mapping[str, Any],
    wanted: Mapping[str, Any],
    options: Mapping[str, tuple[str, bool]],
) -> list[str]:
    told = []
    for option in wanted:
        key, is_time = options.get(option, ("", False))
        # A stream that has no such limit by design (the dead letters' age) is not asked to have one.
        if key not in config or (config[key] or 0) == (held.get(key) or 0):
            continue
        one, other = (_shown(value, is_time) for value in (held.get(key), config[key]))
        told.append(f"{what} has {option.replace('_', ' ')} {one}, not {other}")
    return told


def _shown(value: Any, is_time: bool) -> str:
    if is_time:
        return f"{value / _NANO:g} s" if value else "no limit"
    return str(value)
