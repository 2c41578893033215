"""What a queue is made of on JetStream: making it, and judging what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker_runtime.brokers.base import (
    NotProvisionedError,
    QueueUnusableError,
    TakenBackTooSoonError,
    Timing,
)
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import DURABLE, IDENTITY, QueueNames

_NANO = 1_000_000_000
#: Fields of a configuration that are times, in nanoseconds.
_TIMES = ("ack_wait", "max_age", "duplicate_window")
#: Older ones are forgotten; what they told of is then found when nothing is in work.
_MOST_ADVISORIES = 100_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What `provision` makes where nothing is. Durations in seconds, 0 where there is no limit."""

    replicas: int = 1
    storage: str = "file"
    ack_wait: float = 30.0
    max_age: float = 0.0
    #: -1: the server hands a message out for ever, and the worker counts. With a number, what was handed out
    #: that often stays in the stream until a sweep finds it.
    max_deliver: int = -1
    #: Deliveries that all workers together may hold.
    max_ack_pending: int = 10_000


@dataclass(frozen=True, slots=True)
class Lease:
    """What the consumer says about the time that a delivery may take, in seconds."""

    ack_wait: float
    #: By number of deliveries, the last one for all that follow; empty where there is only the ack wait.
    backoff: tuple[float, ...] = ()
    max_deliver: int = -1
    max_ack_pending: int = 1000
    #: When the consumer was made, as the server says it. Another time is another consumer.
    made: str = ""
    #: The largest pull and its longest wait that the consumer takes; 0 where it sets none.
    max_batch: int = 0
    max_expires: float = 0.0

    def of(self, deliveries: int) -> float:
        """The time for a message that was handed out this often, this one included."""
        if self.backoff:
            return self.backoff[min(deliveries, len(self.backoff)) - 1]
        return self.ack_wait

    @property
    def shortest(self) -> float:
        return min(self.backoff) if self.backoff else self.ack_wait


def read_lease(info: Mapping[str, Any]) -> Lease:
    """From what CONSUMER.INFO answers."""
    config = info["config"]
    return Lease(
        ack_wait=config.get("ack_wait", 30 * _NANO) / _NANO,
        backoff=tuple(one / _NANO for one in config.get("backoff") or ()),
        max_deliver=int(config.get("max_deliver", -1)),
        max_ack_pending=int(config.get("max_ack_pending", -1)),
        made=str(info.get("created", "")),
        max_batch=int(config.get("max_batch", 0)),
        max_expires=config.get("max_expires", 0) / _NANO,
    )


def streams(names: QueueNames, plan: Plan) -> list[dict[str, Any]]:
    """The configurations of the four streams of a queue."""
    shared = {
        "retention": "workqueue",
        "storage": plan.storage,
        "num_replicas": plan.replicas,
        "max_age": int(plan.max_age * _NANO),
        "metadata": {IDENTITY: names.identity},
    }
    return [
        {"name": names.stream, "subjects": [names.normal, names.priority], **shared},
        # Dead letters stay until somebody decides.
        {"name": names.dead_stream, "subjects": [names.dead], **shared, "max_age": 0},
        {
            "name": names.books,
            "subjects": [f"$KV.{names.bucket}.>"],
            "storage": plan.storage,
            "num_replicas": plan.replicas,
            "max_msgs_per_subject": 1,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": False,
            "allow_direct": True,
            "metadata": {IDENTITY: names.identity},
        },
        {
            "name": names.exhausted,
            "subjects": [names.advisories],
            "storage": plan.storage,
            "num_replicas": plan.replicas,
            "max_msgs": _MOST_ADVISORIES,
            "discard": "old",
            "metadata": {IDENTITY: names.identity},
        },
    ]


def consumer(names: QueueNames, plan: Plan) -> dict[str, Any]:
    return {
        "durable_name": DURABLE,
        "name": DURABLE,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "filter_subject": names.normal,
        "ack_wait": int(plan.ack_wait * _NANO),
        "max_deliver": plan.max_deliver,
        "max_ack_pending": plan.max_ack_pending,
    }


def check_identity(names: QueueNames, config: Mapping[str, Any], where: str) -> None:
    """Raises QueueUnusableError when a stream says of itself that it belongs to another queue."""
    owner = (config.get("metadata") or {}).get(IDENTITY)
    if owner is not None and owner != names.identity:
        raise QueueUnusableError(
            f"NATS at {where}: the stream {config['name']} belongs to the queue {owner!r}, not to"
            f" {names.identity!r} (length of the namespace, namespace, queue); use another queue name, or one"
            " account for each namespace"
        )


def check_owner(names: QueueNames, config: Mapping[str, Any], where: str) -> None:
    """Raises QueueUnusableError when a stream of one of our names belongs to another queue, or takes other
    subjects."""
    check_identity(names, config, where)
    name = config["name"]
    wanted = {names.stream: names.normal, names.dead_stream: names.dead}.get(name)
    if wanted is not None and wanted not in config.get("subjects", ()):
        raise QueueUnusableError(
            f"NATS at {where}: the stream {name} takes {', '.join(config.get('subjects', ())) or 'nothing'}"
            f" and not {wanted}; it was made for something else: rename that, or use another queue name"
        )


async def provision(
    link: Link, names: QueueNames, plan: Plan, *, update: bool = False, patience: float = 0.0
) -> Sequence[str]:
    """Make what is missing; one line for each thing that was made, found, or found to differ. With `update`
    what differs is changed, which older workers undo when they start. Raises BrokerError."""
    told: list[str] = []
    wanted = streams(names, plan)
    found = [await api.stream_info(link, one["name"], patience=patience) for one in wanted]
    for info in found:  # nothing is made when one of the names is taken
        if info is not None:
            check_owner(names, info["config"], link.name)
    for config, info in zip(wanted, found, strict=True):
        name = config["name"]
        if info is None:
            await _make_stream(link, names, config, patience)
            told.append(f"made the stream {name}")
            continue

        async def change(config: dict[str, Any], name: str = name) -> None:
            await api.call(link, f"STREAM.UPDATE.{name}", config, f"change the stream {name}")

        told.append(await _compared(f"the stream {name}", info["config"], config, change if update else None))
    config = consumer(names, plan)
    info = await api.consumer_info(link, names.stream, DURABLE, patience=patience)
    of = f"the consumer {DURABLE} of {names.stream}"

    async def write(config: dict[str, Any]) -> None:
        subject = f"CONSUMER.DURABLE.CREATE.{names.stream}.{DURABLE}"
        body = {"stream_name": names.stream, "config": config}
        await api.call(link, subject, body, f"write {of}", patience=patience)

    if info is None:
        await write(config)
        told.append(f"made {of}")
    else:
        _check_consumer(names, info["config"], link.name)
        told.append(await _compared(of, info["config"], config, write if update else None))
    return told


async def _make_stream(link: Link, names: QueueNames, config: dict[str, Any], patience: float) -> None:
    name = config["name"]
    try:
        await api.call(link, f"STREAM.CREATE.{name}", config, f"make the stream {name}", patience=patience)
    except api.ApiError as error:
        if error.code != api.OVERLAP:
            raise
        taken: dict[str, list[str]] = {}
        for subject in config["subjects"]:
            for one in await api.owners_of(link, subject):
                taken.setdefault(one, []).append(subject)
        found = "; ".join(f"{one} takes {' and '.join(subjects)}" for one, subjects in taken.items())
        raise QueueUnusableError(
            f"{error}: {found or 'which one does not show'}; take these subjects from it, or use another name"
            f" than {names.queue} for the queue"
        ) from None


async def _compared(
    what: str,
    held: Mapping[str, Any],
    wanted: Mapping[str, Any],
    change: Callable[[dict[str, Any]], Any] | None,
) -> str:
    differs = {key: value for key, value in wanted.items() if not _same(held.get(key), value)}
    if not differs:
        return f"found {what}"
    if change is None:
        shown = ", ".join(
            f"{key} is {_shown(key, held.get(key))}, not {_shown(key, value)}"
            for key, value in differs.items()
        )
        return f"left {what} as it is: {shown}"
    await change({**held, **wanted})
    shown = ", ".join(
        f"{key} from {_shown(key, held.get(key))} to {_shown(key, value)}" for key, value in differs.items()
    )
    return f"changed {what}: {shown}"


def _shown(key: str, value: Any) -> str:
    if key in _TIMES and isinstance(value, int):
        return f"{value / _NANO:g} s"
    return repr(value)


def _same(held: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return all((held or {}).get(key) == value for key, value in wanted.items())
    if isinstance(wanted, list):
        return set(wanted) <= set(held or ())
    return held == wanted or (not held and not wanted)


def _check_consumer(names: QueueNames, config: Mapping[str, Any], where: str) -> None:
    of = f"NATS at {where}: the consumer {DURABLE} of {names.stream}"
    if config.get("ack_policy") != "explicit":
        raise QueueUnusableError(
            f"{of} has the ack policy {config.get('ack_policy')!r}; only 'explicit' loses nothing. Delete it"
            f" and run: queueworker provision {names.queue}"
        )
    if config.get("deliver_subject"):
        raise QueueUnusableError(
            f"{of} pushes to {config['deliver_subject']}; workers need one that is pulled"
        )
    filters = config.get("filter_subjects") or [config.get("filter_subject", "")]
    if filters != [names.normal]:
        raise QueueUnusableError(
            f"{of} takes {', '.join(filters) or 'everything'} and not {names.normal} alone; delete it and"
            f" run: queueworker provision {names.queue}"
        )


async def check(link: Link, names: QueueNames, timing: Timing) -> Lease:
    """Verify that the queue is there and can be used safely. Raises BrokerError."""
    for name in (names.stream, names.dead_stream, names.books):
        info = await api.stream_info(link, name)
        if info is None:
            raise NotProvisionedError(f"NATS at {link.name} has no stream {name}", names.queue)
        check_owner(names, info["config"], link.name)
    info = await api.stream_info(link, names.stream)
    assert info is not None
    retention = info["config"].get("retention")
    if retention != "workqueue":
        raise QueueUnusableError(
            f"NATS at {link.name}: the stream {names.stream} keeps messages by {retention!r}; a queue needs"
            " 'workqueue', where one worker gets each of them"
        )
    described = await api.consumer_info(link, names.stream, DURABLE)
    if described is None:
        raise NotProvisionedError(
            f"NATS at {link.name}: the stream {names.stream} has no consumer {DURABLE}", names.queue
        )
    _check_consumer(names, described["config"], link.name)
    lease = read_lease(described)
    if lease.shortest < timing.renewal_period:
        raise TakenBackTooSoonError(
            f"NATS at {link.name}: the consumer {DURABLE} of {names.stream} takes work back after"
            f" {lease.shortest:g} s without a sign, and this worker renews every"
            f" {timing.renewal_period:g} s (a third of the expiry)",
            names.queue,
            lease.shortest,
            timing.expiry,
        )
    return lease
