"""A world small enough to be explored whole: two versions, a queue, and everything that may happen to them.

A state is a tuple of small numbers. What the operator decided is in it too, action by action: between any two
the world may move, and the operator may die and forget the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple, TypeVar

from queueworker_operator.api.reasons import WAY_OUT, Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import Protocol, QueueWorker, QueueWorkerStatus, RolloutStatus
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.deletion import LISTED_AT_MOST
from queueworker_operator.plan.facts import Facts, QueueFacts, RevisionFacts, Unknown, Workers
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.resources import GONE, OLD, START, V1, V2, priority_work, reachable, wants

NAMES = ("a", "b")

T = TypeVar("T")


class Group(NamedTuple):
    """The workers of one version. Those that are wanted and not ready are starting."""

    exists: bool
    desired: int = 0
    ready: int = 0
    stopping: int = 0


NONE = Group(False)


class Status(NamedTuple):
    """What the operator reads back of its own status."""

    stable: str
    previous: str
    stage: Stage
    target: str


class World(NamedTuple):
    target: str
    wanted: int
    groups: tuple[Group, Group]
    #: Taken and not yet claimed; owned by workers of each version; moved into staging.
    reserved: int
    owned: tuple[int, int]
    staged: int
    fences: tuple[bool, bool]
    #: A worker of b that the cluster has lost sight of.
    ghost: bool
    seen: bool
    #: Whether nothing moved for the quiet time.
    quiet: bool
    status: Status
    #: Actions that were decided and not yet done.
    pending: tuple[tuple[object, ...], ...] = ()
    edits: int = 0
    #: How b may be: sound, with a flaw that shows one day, or unable to start.
    b: str = "sound"
    #: Of the resource: somebody may delete it; it is on its way out; it is gone.
    life: str = "stays"
    #: Messages on the subject that only workers of a take; whether it was empty for the ack wait; whether a
    #: worker of a started within the ack wait.
    priority: int = 0
    drained: bool = False
    young: bool = False

    @property
    def registry(self) -> int:
        return self.reserved + sum(self.owned) + self.staged


@dataclasses.dataclass(frozen=True)
class Rules:
    """Which image speaks what. b always speaks Reservation."""

    legacy: bool
    #: There is a subject of which only Legacy workers take, and no registry.
    nats: bool = False

    def capable(self, index: int) -> bool:
        return index == 1 or not self.legacy

    def receivers(self, world: World) -> int:
        """Workers in the cluster that may take what is ready."""
        return sum(
            min(group.ready, group.desired)
            for index, group in enumerate(world.groups)
            if not (self.capable(index) and world.fences[index])
        )

    def successors(self, world: World, index: int) -> int:
        """Live workers that recover what those of a version leave and are not on their way out, too."""
        other = 1 - index
        if world.fences[other] or not self.capable(other):
            return 0
        return world.groups[other].ready + (other == 1 and world.ghost)

    def live_capable(self, world: World) -> int:
        """Live workers on the broker that recover what others reserved; a lost one does, too."""
        return sum(
            group.ready + (index == 1 and world.ghost)
            for index, group in enumerate(world.groups)
            if self.capable(index)
        )


Step = tuple[str, World]


def happenings(rules: Rules, world: World, limit: int) -> Iterator[Step]:
    """What may happen without the operator. `limit` bounds what is in the registry."""
    yield from _workers(world)
    yield from _queue(rules, world, limit)
    if rules.nats:
        yield from _priority(world)
    if world.seen:
        yield "the broker is lost", world._replace(seen=False, quiet=False)
    else:
        yield "the broker answers again", world._replace(seen=True)
    if not world.quiet and not world.registry:
        yield "it stays quiet", world._replace(quiet=True)
    if world.edits:
        other = "a" if world.target == "b" else "b"
        yield f"somebody asks for {other}", world._replace(target=other, edits=world.edits - 1)
        number = 0 if world.wanted else 1
        yield f"somebody asks for {number} workers", world._replace(wanted=number, edits=world.edits - 1)
    if world.life == "may end":
        yield "somebody deletes the resource", world._replace(life="ending", edits=0)
    if world.b == "flawed":
        group = world.groups[1]
        groups = _with(world.groups, 1, group._replace(ready=0)) if group.exists else world.groups
        yield "b cannot start any more, and its workers die", world._replace(b="broken", groups=groups)
    if world.groups[1].ready and not world.ghost:
        yield "the cluster loses a worker of b, which goes on", _put(world, 1, ready=-1)._replace(ghost=True)


def _workers(world: World) -> Iterator[Step]:
    for index, group in enumerate(world.groups):
        name = NAMES[index]
        if group.ready < group.desired and not (index == 1 and world.b == "broken"):
            ready = _put(world, index, ready=1)
            yield f"a worker of {name} gets ready", ready._replace(young=True) if index == 0 else ready
        if group.stopping:
            yield f"a worker of {name} has stopped", _put(world, index, stopping=-1)
        if group.ready:
            yield f"a worker of {name} dies", _put(world, index, ready=-1)


def _priority(world: World) -> Iterator[Step]:
    left = world.priority
    if left < 2:
        yield "a producer publishes what only a takes", world._replace(priority=left + 1, drained=False)
    if left and (world.groups[0].ready or world.groups[0].stopping):
        yield "a worker of a settles what only it takes", world._replace(priority=left - 1, drained=False)
    yield "the ack wait goes by", world._replace(drained=not left, young=False)


def _queue(rules: Rules, world: World, limit: int) -> Iterator[Step]:
    if not world.seen:
        return
    moved = world._replace(quiet=False)
    room = world.registry < limit
    for index, group in enumerate(world.groups):
        if not rules.capable(index):
            continue
        name, owned = NAMES[index], world.owned[index]
        takes = (group.ready or (index == 1 and world.ghost)) and not world.fences[index]
        if takes and room:
            yield f"a worker of {name} reserves", moved._replace(reserved=world.reserved + 1)
        alive = group.ready or group.stopping
        if alive and world.reserved:
            claimed = moved._replace(reserved=world.reserved - 1, owned=_with(world.owned, index, owned + 1))
            yield f"a worker of {name} claims", claimed
        if alive and owned:
            yield f"a worker of {name} settles", moved._replace(owned=_with(world.owned, index, owned - 1))
        if takes and world.staged:
            yield (
                f"a worker of {name} takes what is staged",
                moved._replace(staged=0, reserved=world.reserved + 1),
            )
    if world.ghost and room and not world.staged:
        yield "the lost worker's wait, begun long ago, brings one into staging", moved._replace(staged=1)
    if rules.live_capable(world):
        yield from _recovered(world, "a worker")


def _recovered(world: World, who: str) -> Iterator[Step]:
    moved = world._replace(quiet=False)
    if world.reserved:
        yield f"{who} recovers a reservation", moved._replace(reserved=world.reserved - 1)
    for index, owned in enumerate(world.owned):
        if owned:
            text = f"{who} takes over from {NAMES[index]}"
            yield text, moved._replace(owned=_with(world.owned, index, owned - 1))


def do(world: World) -> Iterator[Step]:
    """The operator's next action. More than one world where its effect is not certain."""
    action, rest = world.pending[0], world.pending[1:]
    after = world._replace(pending=rest)
    match action:
        case ("scale", int(index), int(number)):
            yield f"the operator sets {NAMES[index]} to {number}", _scaled(after, index, number)
        case ("delete", int(index)):
            yield (
                f"the operator deletes {NAMES[index]}",
                after._replace(groups=_with(after.groups, index, NONE)),
            )
        case ("let go",):
            yield "the operator lets the resource go", after._replace(life="gone", groups=(NONE, NONE))
        case ("fence", int(index)) if world.seen:
            fenced = after._replace(fences=_with(after.fences, index, True), quiet=False)
            yield f"the operator fences {NAMES[index]}", fenced
        case ("unfence", int(index)) if world.seen:
            yield (
                f"the operator lifts the fence on {NAMES[index]}",
                after._replace(fences=_with(after.fences, index, False), quiet=False),
            )
        case ("recover",) if world.seen:
            yield "the operator finds nothing that is due", after
            yield from _recovered(after, "the operator")
        case ("return staged",) if world.seen:
            yield "the operator returns what is staged", after._replace(staged=0, quiet=False)
        case ("promote delayed",) if world.seen:
            yield "the operator makes delayed work ready", after
        case ("status", Status() as status):
            yield f"the operator writes {status.stage}, stable {status.stable}", after._replace(status=status)
        case _:
            yield f"the broker refuses: {action[0]}", world._replace(pending=())


def decide(rules: Rules, world: World) -> tuple[tuple[object, ...], ...]:
    """What the planner wants done, as `do` understands it."""
    return _decide(
        rules,
        world._replace(pending=(), ghost=False, edits=0, owned=world.owned),
        world.ghost,
    )


@cache
def _decide(rules: Rules, world: World, ghost: bool) -> tuple[tuple[object, ...], ...]:
    if world.life == "gone":
        return ()
    resource = _resource(rules, world.target, world.wanted, world.status, world.life == "ending")
    decided = plan(resource, _facts(rules, world, ghost, resource), START)
    names = _revisions(rules)
    index = {revision.name: number for number, revision in enumerate(names)}
    pending: list[tuple[object, ...]] = []
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
            case act.EmitEvent() | act.WriteStatus():
                pass
            case _:
                raise AssertionError(f"unexpected {action}")
    written = _short(decided.status, index)
    if written != world.status:
        pending.append(("status", written))
    return tuple(pending)


@cache
def _revisions(rules: Rules) -> tuple[Revision, Revision]:
    return (OLD if rules.legacy else V1, V2)


@cache
def _resource(rules: Rules, target: str, wanted: int, status: Status, ending: bool) -> QueueWorker:
    revisions = dict(zip(NAMES, _revisions(rules), strict=True))
    full = QueueWorkerStatus(
        stable=revisions[status.stable].as_stable(),
        previous=revisions[status.previous].name if status.previous else None,
        rollout=RolloutStatus(
            target=revisions[status.target].name if status.target else None,
            stage=status.stage,
            started_at=START,
            # A lost worker holds a deletion up for a while; here that is over.
            progressed_at=START - LISTED_AT_MOST * 2 if ending else START,
            leaving=revisions["b" if status.target == "a" else "a"].name if status.stage in WAY_OUT else None,
        ),
    )
    image = "demo:v2" if target == "b" else "demo:old" if rules.legacy else "demo:v1"
    protocol: dict[str, object] = {"spec__protocol": "Legacy"} if rules.legacy and target == "a" else {}
    return wants(image, wanted, full, **protocol, **(GONE if ending else {}))


def _facts(rules: Rules, world: World, ghost: bool, resource: QueueWorker) -> Facts:
    revisions = _revisions(rules)
    rows = tuple(
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
            protocol=Protocol.RESERVATION if rules.capable(number) else Protocol.LEGACY,
            started_at=_ago(1 if world.young else 60) if group.desired or group.stopping else None,
        )
        for number, (revision, group) in enumerate(zip(revisions, world.groups, strict=True))
        if group.exists
    )
    if not world.seen:
        nobody = Unknown("nobody could look", START)
        return Facts(Workers(rows, START), nobody, nobody)
    live = {
        revision.name: LiveWorkers(
            # A lost worker that is fenced falls silent or says that it receives no more.
            capable=group.ready + (ghost and number == 1),
            receiving=0 if world.fences[number] else group.ready + (ghost and number == 1),
        )
        for number, (revision, group) in enumerate(zip(revisions, world.groups, strict=True))
        if rules.capable(number)
    }
    queue = QueueFacts(
        observed_at=START,
        identity=reachable(resource).identity,
        has_registry=not rules.nats,
        primary=True,
        staging=world.staged,
        reserved=world.reserved,
        owned=sum(world.owned),
        delayed=0,
        owned_by={r.name: n for r, n in zip(revisions, world.owned, strict=True) if n},
        fences={
            r.name: "QueueWorker workers/stats-usage: it leaves"
            for r, fenced in zip(revisions, world.fences, strict=True)
            if fenced
        },
        live=live,
        quiet_since=None if world.registry else _ago(60 if world.quiet else 1),
    )
    check = reachable(resource)
    if rules.nats:
        check = dataclasses.replace(
            check, priority=priority_work(world.priority, _ago(60 if world.drained else 1))
        )
    return Facts(Workers(rows, START), check, queue)


def _ago(seconds: float) -> datetime:
    return START - timedelta(seconds=seconds)


def _short(status: QueueWorkerStatus, index: dict[str, int]) -> Status:
    assert status.stable is not None
    assert status.rollout is not None
    target = status.rollout.target
    previous = NAMES[index[status.previous]] if status.previous else ""
    return Status(
        NAMES[index[status.stable.revision]],
        previous,
        status.rollout.stage,
        NAMES[index[target]] if target else "",
    )


def _put(world: World, index: int, ready: int = 0, stopping: int = 0) -> World:
    group = world.groups[index]
    group = group._replace(ready=group.ready + ready, stopping=group.stopping + stopping)
    return world._replace(groups=_with(world.groups, index, group))


def _scaled(world: World, index: int, number: int) -> World:
    group = world.groups[index]
    ready = min(group.ready, number)
    # One that stops stands for all of them: which of several ends first makes no difference here.
    stopping = min(1, group.stopping + group.ready - ready)
    return world._replace(groups=_with(world.groups, index, Group(True, number, ready, stopping)))


def _with(pair: tuple[T, T], index: int, value: T) -> tuple[T, T]:
    return (value, pair[1]) if index == 0 else (pair[0], value)
