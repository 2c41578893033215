"""Workers of a few revisions in a small world: what they may do, what the operator sees of them, and what its
decisions do to them. Revisions are known by their place in the tuples of the world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import Protocol
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import BrokerCheck, QueueFacts, RevisionFacts
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.resources import START

#: One action that was decided, as `done` understands it.
Todo = tuple[object, ...]

T = TypeVar("T")
Step = tuple[str, Any]


class Group(NamedTuple):
    """The workers of one revision. Those that are wanted and not ready are starting."""

    exists: bool
    desired: int = 0
    ready: int = 0
    stopping: int = 0


NONE = Group(False)


def with_(several: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*several[:index], value, *several[index + 1 :])


def put(world: Any, index: int, ready: int = 0, stopping: int = 0) -> Any:
    group = world.groups[index]
    group = group._replace(ready=group.ready + ready, stopping=group.stopping + stopping)
    return world._replace(groups=with_(world.groups, index, group))


def _scaled(world: Any, index: int, number: int) -> Any:
    group = world.groups[index]
    ready = min(group.ready, number)
    # One that stops stands for all of them: which of several ends first makes no difference here.
    stopping = min(1, group.stopping + group.ready - ready)
    return world._replace(groups=with_(world.groups, index, Group(True, number, ready, stopping)))


def ago(seconds: float) -> datetime:
    return START - timedelta(seconds=seconds)


# -- what may happen -----------------------------------------------------------------------------------


def workers_move(
    names: str, world: Any, *, dies: Sequence[int], broken: str = "", nats: bool = False
) -> Iterator[Step]:
    """Workers start, stop and die. `broken` cannot start. Where there is a priority subject, one of a that
    starts may take up what others left there."""
    for index, group in enumerate(world.groups):
        name = names[index]
        if group.ready < group.desired and name != broken:
            ready = put(world, index, ready=1)
            young = nats and index == 0
            yield f"a worker of {name} gets ready", ready._replace(young=True) if young else ready
        if group.stopping:
            yield f"a worker of {name} has stopped", put(world, index, stopping=-1)
        if group.ready and index in dies:
            yield f"a worker of {name} dies", put(world, index, ready=-1)


def priority_moves(world: Any) -> Iterator[Step]:
    """Messages on the subject that only workers of a take."""
    left = world.priority
    if left < 2:
        yield "a producer publishes what only a takes", world._replace(priority=left + 1, drained=False)
    if left and (world.groups[0].ready or world.groups[0].stopping):
        yield "a worker of a settles what only it takes", world._replace(priority=left - 1, drained=False)
    yield "the ack wait goes by", world._replace(drained=not left, young=False)


def broker_moves(world: Any, registry: int) -> Iterator[Step]:
    if world.seen:
        yield "the broker is lost", world._replace(seen=False, quiet=False)
    else:
        yield "the broker answers again", world._replace(seen=True)
    if not world.quiet and not registry:
        yield "it stays quiet", world._replace(quiet=True)


def priority_is_gone(world: Any) -> bool:
    """Whether it is proven that nothing is left that only workers of a take."""
    return bool(world.seen and world.drained and not world.young and not world.priority)


# -- what the operator sees ----------------------------------------------------------------------------


def rows(
    revisions: Sequence[Revision], groups: Sequence[Group], started_at: datetime
) -> tuple[RevisionFacts, ...]:
    return tuple(
        RevisionFacts(
            name=revision.name,
            version=revision.version,
            prefetch=revision.prefetch,
            deployment=revision.deployment,
            desired=group.desired,
            ready=group.ready,
            available=group.ready,
            alive=group.desired + group.stopping,
            created=float(number),
            coroutines=revision.coroutines,
            protocol=revision.protocol,
            started_at=started_at if group.desired or group.stopping else None,
        )
        for number, (revision, group) in enumerate(zip(revisions, groups, strict=True))
        if group.exists
    )


def queue_read(
    check: BrokerCheck, revisions: Sequence[Revision], world: Any, registry: int, **more: Any
) -> QueueFacts:
    """One look at the queue. `registry` is how much is in it."""
    both = list(enumerate(zip(revisions, world.groups, strict=True)))
    content: dict[str, Any] = {
        "observed_at": START,
        "identity": check.identity,
        "has_registry": True,
        "primary": True,
        "staging": 0,
        "reserved": 0,
        "owned": sum(world.owned),
        "delayed": 0,
        "owned_by": {r.name: n for r, n in zip(revisions, world.owned, strict=True) if n},
        "fences": {
            r.name: "QueueWorker workers/stats-usage: it leaves"
            for r, fenced in zip(revisions, world.fences, strict=True)
            if fenced
        },
        "live": {
            r.name: LiveWorkers(capable=group.ready, receiving=0 if world.fences[number] else group.ready)
            for number, (r, group) in both
            if r.protocol is Protocol.RESERVATION
        },
        "quiet_since": None if registry else ago(60 if world.quiet else 1),
    }
    return QueueFacts(**(content | more))


# -- what the operator does ----------------------------------------------------------------------------


def to_do(decided: act.Plan, index: Mapping[str, int]) -> list[Todo]:
    """The actions of a plan but for the status."""
    pending: list[Todo] = []
    for action in decided.actions:
        match action:
            case act.ApplyRevision(revision, replicas):
                pending.append(("scale", index[revision.name], replicas))
            case act.ScaleRevision(revision, _, replicas):
                pending.append(("scale", index[revision], replicas))
            case act.RetireRevision(revision, _):
                pending.append(("scale", index[revision], 0))
            case act.DeleteRevision(revision, _):
                pending.append(("delete", index[revision]))
            case act.FenceRevision(revision, _):
                pending.append(("fence", index[revision]))
            case act.UnfenceRevision(revision):
                pending.append(("unfence", index[revision]))
            case act.RecoverWork():
                pending.append(("recover",))
            case act.ReturnStaged():
                pending.append(("return staged",))
            case act.PromoteDelayed():
                pending.append(("promote delayed",))
            case act.RemoveFinalizer():
                pending.append(("let go",))
            case act.StartAudit():
                pending.append(("count",))
            case act.RemoveAudit():
                pending.append(("stop counting",))
            case act.EmitEvent() | act.WriteStatus():
                pass
            case _:
                raise AssertionError(f"unexpected {action}")
    return pending


def done(
    names: str,
    world: Any,
    recovered: Callable[[Any, str], Iterator[Step]],
    written: Callable[[Any, Todo], Step],
) -> Iterator[Step]:
    """The next action. `recovered` is what a recovery may do, `written` what a status does."""
    action, rest = world.pending[0], world.pending[1:]
    after = world._replace(pending=rest)
    match action:
        case ("scale", int(index), int(number)):
            yield f"the operator sets {names[index]} to {number}", _scaled(after, index, number)
        case ("delete", int(index)):
            text = f"the operator deletes {names[index]}"
            yield text, after._replace(groups=with_(after.groups, index, NONE))
        case ("let go",):
            groups = tuple(NONE for _ in after.groups)
            yield "the operator lets the resource go", after._replace(life="gone", groups=groups)
        case ("fence", int(index)) if world.seen:
            fenced = after._replace(fences=with_(after.fences, index, True), quiet=False)
            yield f"the operator fences {names[index]}", fenced
        case ("unfence", int(index)) if world.seen:
            lifted = after._replace(fences=with_(after.fences, index, False), quiet=False)
            yield f"the operator lifts the fence on {names[index]}", lifted
        case ("recover",) if world.seen:
            yield "the operator finds nothing that is due", after
            yield from recovered(after, "the operator")
        case ("return staged",) if world.seen:
            yield "the operator returns what is staged", after._replace(staged=0, quiet=False)
        case ("promote delayed",) if world.seen:
            yield "the operator makes delayed work ready", after
        case ("status", *_):
            yield written(after, action)
        case _:
            yield f"the broker refuses: {action[0]}", world._replace(pending=())


def look_at(names: str, world: Any) -> str:
    """The groups and the fences, in words."""
    groups = ", ".join(
        f"{name} {group.ready} of {group.desired} ready"
        + (f" and {group.stopping} stopping" if group.stopping else "")
        for name, group in zip(names, world.groups, strict=True)
        if group.exists
    )
    fences = [name for name, fenced in zip(names, world.fences, strict=True) if fenced] or "none"
    left = ""
    if world.priority or world.drained:
        left = f"; for a alone {world.priority}" + ("" if world.drained else ", not long ago")
    unseen = "" if world.seen else "; the broker is away"
    return f"{world.target} is wanted; {groups}; fences: {fences}{left}{unseen}"
