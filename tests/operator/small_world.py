"""A world small enough to be explored whole: two versions, a queue, and everything that may happen to them.

A state is a tuple of small numbers. What the operator decided is in it too, action by action: between any two
the world may move, and the operator may die and forget the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from queueworker_operator.api.reasons import WAY_OUT, Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus, RolloutStatus
from queueworker_operator.plan.deletion import LISTED_AT_MOST
from queueworker_operator.plan.facts import Facts, Unknown, Workers
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.acting import (
    Group,
    Todo,
    ago,
    broker_moves,
    done,
    priority_moves,
    put,
    queue_read,
    rows,
    to_do,
    with_,
    workers_move,
)
from tests.operator.resources import GONE, OLD, START, V1, V2, priority_work, reachable, wants

NAMES = "ab"


class Status(NamedTuple):
    """What the operator reads back of its own status."""

    stable: str
    previous: str
    stage: Stage
    target: str


class World(NamedTuple):
    target: str
    wanted: int
    groups: tuple[Group, ...]
    #: Taken and not yet claimed; owned by workers of each version; moved into staging.
    reserved: int
    owned: tuple[int, ...]
    staged: int
    fences: tuple[bool, ...]
    #: A worker of b that the cluster has lost sight of.
    ghost: bool
    seen: bool
    #: Whether nothing moved for the quiet time.
    quiet: bool
    status: Status
    #: Actions that were decided and not yet done.
    pending: tuple[Todo, ...] = ()
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
    #: A worker of each version that was killed, and that the broker lists until it falls silent.
    listed: tuple[bool, ...] = (False, False)

    @property
    def registry(self) -> int:
        return self.reserved + sum(self.owned) + self.staged


@dataclasses.dataclass(frozen=True)
class Rules:
    """Which image speaks what. b always speaks Reservation."""

    legacy: bool
    #: There is a subject of which only Legacy workers take, and no registry.
    nats: bool = False
    #: Killed workers stay on the broker's list for a while.
    lists: bool = False

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
    broken = "b" if world.b == "broken" else ""
    yield from workers_move(NAMES, world, dies=(0, 1), broken=broken, nats=rules.nats)
    if rules.lists:
        yield from _listed(rules, world)
    yield from _queue(rules, world, limit)
    if rules.nats:
        yield from priority_moves(world)
    yield from broker_moves(world, world.registry)
    if world.edits:
        other = "a" if world.target == "b" else "b"
        yield f"somebody asks for {other}", world._replace(target=other, edits=world.edits - 1)
        number = 0 if world.wanted else 1
        yield f"somebody asks for {number} workers", world._replace(wanted=number, edits=world.edits - 1)
    if world.life == "may end":
        yield "somebody deletes the resource", world._replace(life="ending", edits=0)
    if world.b == "flawed":
        group = world.groups[1]
        groups = with_(world.groups, 1, group._replace(ready=0)) if group.exists else world.groups
        yield "b cannot start any more, and its workers die", world._replace(b="broken", groups=groups)
    if world.groups[1].ready and not world.ghost:
        yield "the cluster loses a worker of b, which goes on", put(world, 1, ready=-1)._replace(ghost=True)


def _listed(rules: Rules, world: World) -> Iterator[Step]:
    for index, group in enumerate(world.groups):
        name = NAMES[index]
        if world.listed[index]:
            silent = world._replace(listed=with_(world.listed, index, False))
            yield f"the killed worker of {name} falls silent", silent
        elif rules.capable(index):
            listed = world._replace(listed=with_(world.listed, index, True))
            if group.ready:
                yield f"a worker of {name} is killed and stays on the list", put(listed, index, ready=-1)
            if group.stopping:
                yield f"a worker of {name} is killed as it stops", put(listed, index, stopping=-1)


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
            claimed = moved._replace(reserved=world.reserved - 1, owned=with_(world.owned, index, owned + 1))
            yield f"a worker of {name} claims", claimed
        if alive and owned:
            yield f"a worker of {name} settles", moved._replace(owned=with_(world.owned, index, owned - 1))
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
            yield text, moved._replace(owned=with_(world.owned, index, owned - 1))


def do(world: World) -> Iterator[Step]:
    """The operator's next action. More than one world where its effect is not certain."""

    def written(after: World, action: Todo) -> Step:
        _, status = action
        assert isinstance(status, Status)
        said = f"the operator writes {status.stage}, stable {status.stable}"
        return said, after._replace(status=status)

    yield from done(NAMES, world, _recovered, written)


def decide(rules: Rules, world: World) -> tuple[Todo, ...]:
    """What the planner wants done, as `do` understands it."""
    return _decide(
        rules,
        world._replace(pending=(), ghost=False, edits=0, owned=world.owned),
        world.ghost,
    )


@cache
def _decide(rules: Rules, world: World, ghost: bool) -> tuple[Todo, ...]:
    if world.life == "gone":
        return ()
    resource = _resource(rules, world.target, world.wanted, world.status, world.life == "ending")
    decided = plan(resource, _facts(rules, world, ghost, resource), START)
    index = {revision.name: number for number, revision in enumerate(_revisions(rules))}
    pending = to_do(decided, index)
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
    workers = Workers(rows(revisions, world.groups, ago(1 if world.young else 60)), START)
    if not world.seen:
        nobody = Unknown("nobody could look", START)
        return Facts(workers, nobody, nobody)
    check = reachable(resource)
    # A lost worker that is fenced falls silent or says that it receives no more.
    alive = [group.ready + (ghost and number == 1) for number, group in enumerate(world.groups)]
    dead = world.listed
    live = {
        revision.name: LiveWorkers(
            capable=alive[number] + dead[number],
            # One that was killed took no notice of a fence.
            receiving=(0 if world.fences[number] else alive[number]) + dead[number],
        )
        for number, revision in enumerate(revisions)
        if rules.capable(number)
    }
    queue = queue_read(
        check,
        revisions,
        world,
        world.registry,
        has_registry=not rules.nats,
        staging=world.staged,
        reserved=world.reserved,
        live=live,
    )
    if rules.nats:
        work = priority_work(world.priority, ago(60 if world.drained else 1))
        check = dataclasses.replace(check, priority=work)
    return Facts(workers, check, queue)


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
