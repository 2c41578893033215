"""A small world with a canary of two arms, to be explored whole.

A stable revision a, the arms p and t of the next version, of which t is promoted, and everything that may
happen to them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple, TypeVar

from queueworker_operator.api.reasons import CANARY_STAGES, WAY_OUT, Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.rollout import Step, steps_hash
from queueworker_operator.api.types import Protocol, QueueWorker, QueueWorkerStatus, RolloutStatus
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import Facts, QueueFacts, RevisionFacts, Unknown, Workers
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.resources import OLD, START, V1, V2, image_revision, reachable, wants
from tests.operator.small_world import NONE, Group

NAMES = ("a", "p", "t")
P4 = image_revision("demo:v2", spec__prefetch=4)
#: Seconds of the pauses; the second one is what an edit of the steps makes of them.
PAUSES = (60, 61)

T = TypeVar("T")
Happening = tuple[str, "World"]


class Status(NamedTuple):
    """What the operator reads back of its own status. Empty names are absent."""

    stable: str
    stage: Stage = Stage.IDLE
    target: str = ""
    previous: str = ""
    #: The step, counted from 1; which steps they are, as an index into PAUSES.
    step: int = 0
    steps: int = -1
    promoted: bool = False
    aborted: bool = False
    handled: bool = False


class World(NamedTuple):
    target: str
    wanted: int
    groups: tuple[Group, Group, Group]
    owned: tuple[int, int, int]
    fences: tuple[bool, bool, bool]
    seen: bool
    quiet: bool
    status: Status
    #: The time of a pause has gone by since the step began.
    waited: bool = False
    #: Which of the two pauses the spec has.
    steps: int = 0
    aborted: bool = False
    #: Not for the operator: which arms ran as they should when it looked and the time had gone by, since the
    #: steps last began.
    proven: tuple[bool, bool] = (False, False)
    pending: tuple[tuple[object, ...], ...] = ()
    edits: int = 0
    #: The arm that cannot start, if any.
    broken: str = ""


class Asked(NamedTuple):
    """What the spec says."""

    target: str
    wanted: int
    steps: int
    aborted: bool


class Rules(NamedTuple):
    """Which image speaks what."""

    legacy: bool

    def capable(self, index: int) -> bool:
        return index > 0 or not self.legacy

    def receivers(self, world: World) -> int:
        return sum(
            min(group.ready, group.desired)
            for index, group in enumerate(world.groups)
            if not (self.capable(index) and world.fences[index])
        )

    def successors(self, world: World, index: int) -> int:
        """Live workers of others that recover what those of a revision leave and are not on their way out."""
        return sum(
            group.ready
            for other, group in enumerate(world.groups)
            if other != index and self.capable(other) and not world.fences[other]
        )

    def live_capable(self, world: World) -> int:
        return sum(group.ready for index, group in enumerate(world.groups) if self.capable(index))


def in_force(world: World, arm: int) -> bool:
    """The arm runs alone beside the stable revision, as the steps ask for."""
    a, other, one = world.groups[0], world.groups[3 - arm], world.groups[arm]
    return (
        one.desired == 1 <= one.ready
        and not world.fences[arm]
        and not other.exists
        and a.desired == max(1, world.wanted - 1)
    )


def what_may_happen(rules: Rules, world: World, limit: int) -> Iterator[Happening]:
    """What may happen without the operator."""
    for index, group in enumerate(world.groups):
        name = NAMES[index]
        if group.ready < group.desired and name != world.broken:
            yield f"a worker of {name} gets ready", _put(world, index, ready=1)
        if group.stopping:
            yield f"a worker of {name} has stopped", _put(world, index, stopping=-1)
        if group.ready and index:
            yield f"a worker of {name} dies", _put(world, index, ready=-1)
    yield from _queue(rules, world, limit)
    if world.seen:
        yield "the broker is lost", world._replace(seen=False, quiet=False)
    else:
        yield "the broker answers again", world._replace(seen=True)
    if not world.quiet and not sum(world.owned):
        yield "it stays quiet", world._replace(quiet=True)
    if not world.waited:
        yield "the time of a pause goes by", world._replace(waited=True)
    if world.edits:
        left = world._replace(edits=world.edits - 1)
        again = left._replace(proven=(False, False))
        # Where a is gone already, t has taken over by the steps that there were.
        other_steps = again if world.groups[0].exists else left
        yield "somebody asks for the other version", left._replace(target="at"[world.target == "a"])
        yield "somebody changes the steps", other_steps._replace(steps=1 - world.steps, waited=False)
        yield "somebody aborts", left._replace(aborted=True)
        yield "the status is lost", again._replace(status=Status(""), waited=False)


def _queue(rules: Rules, world: World, limit: int) -> Iterator[Happening]:
    if not world.seen:
        return
    moved = world._replace(quiet=False)
    for index, group in enumerate(world.groups):
        if not rules.capable(index):
            continue
        name, owned = NAMES[index], world.owned[index]
        if group.ready and not world.fences[index] and sum(world.owned) < limit:
            yield f"a worker of {name} takes one", moved._replace(owned=_with(world.owned, index, owned + 1))
        if (group.ready or group.stopping) and owned:
            yield f"a worker of {name} settles", moved._replace(owned=_with(world.owned, index, owned - 1))
        elif owned and rules.live_capable(world):
            text = f"a worker takes over from {name}"
            yield text, moved._replace(owned=_with(world.owned, index, owned - 1))


def do(world: World) -> Iterator[Happening]:
    """The operator's next action."""
    action, rest = world.pending[0], world.pending[1:]
    after = world._replace(pending=rest)
    match action:
        case ("scale", int(index), int(number)):
            yield f"the operator sets {NAMES[index]} to {number}", _scaled(after, index, number)
        case ("delete", int(index)):
            text = f"the operator deletes {NAMES[index]}"
            yield text, after._replace(groups=_with(after.groups, index, NONE))
        case ("fence", int(index), bool(fenced)) if world.seen:
            text = f"the operator {'fences' if fenced else 'lifts the fence on'} {NAMES[index]}"
            yield text, after._replace(fences=_with(after.fences, index, fenced), quiet=False)
        case ("recover",) if world.seen:
            yield "the operator finds nothing that is due", after
            for index, owned in enumerate(world.owned):
                if owned:
                    taken = after._replace(owned=_with(world.owned, index, owned - 1), quiet=False)
                    yield f"the operator takes over from {NAMES[index]}", taken
        case ("status", Status() as status):
            same = (status.step, status.target) == (world.status.step, world.status.target)
            text = f"the operator writes {status.stage} {status.step}, stable {status.stable}"
            yield text, after._replace(status=status, waited=world.waited and same)
        case _:
            yield f"the broker refuses: {action[0]}", world._replace(pending=())


def decide(rules: Rules, world: World) -> tuple[tuple[object, ...], ...]:
    """What the planner wants done, as `do` understands it."""
    return _decide(rules, world._replace(pending=(), edits=0, proven=(False, False), broken=""))


@cache
def _decide(rules: Rules, world: World) -> tuple[tuple[object, ...], ...]:
    asked = Asked(world.target, world.wanted, world.steps, world.aborted)
    resource = _resource(rules, asked, world.status, world.waited)
    decided = plan(resource, _facts(rules, world, resource), START)
    index = {revision.name: number for number, revision in enumerate(_revisions(rules))}
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
                pending.append(("fence", index[revision], True))
            case act.UnfenceRevision(revision):
                pending.append(("fence", index[revision], False))
            case act.RecoverWork():
                pending.append(("recover",))
            case act.EmitEvent() | act.WriteStatus():
                pass
            case _:
                raise AssertionError(f"unexpected {action}")
    written = _short(decided.status, index)
    if written != world.status:
        pending.append(("status", written))
    return tuple(pending)


@cache
def _revisions(rules: Rules) -> tuple[Revision, ...]:
    return (OLD if rules.legacy else V1, P4, V2)


@cache
def _steps(which: int) -> list[dict[str, Any]]:
    pause = {"pause": {"durationSeconds": PAUSES[which]}}
    return [{"setCanaryScale": {"replicas": 1}}, {"setPrefetch": 4}, pause, {"setPrefetch": 100}, pause]


@cache
def _hashes() -> tuple[str, ...]:
    return tuple(steps_hash([Step.model_validate(step) for step in _steps(which)]) for which in (0, 1))


@cache
def _resource(rules: Rules, asked: Asked, status: Status, waited: bool) -> QueueWorker:
    by_name = dict(zip(NAMES, _revisions(rules), strict=True))
    full = QueueWorkerStatus(
        stable=by_name[status.stable].as_stable() if status.stable else None,
        previous=by_name[status.previous].name if status.previous else None,
        promoted=V2.name if status.promoted else None,
        aborted=V2.name if status.aborted else None,
        handled_request="1" if status.handled else None,
    )
    if status.target:
        shown = RolloutStatus(
            target=by_name[status.target].name,
            stage=status.stage,
            started_at=START,
            progressed_at=START,
            leaving="somebody" if status.stage in WAY_OUT else None,
        )
        if status.step:
            began = START - timedelta(seconds=100 if waited else 0)
            step = {"step": f"{status.step}/5", "attempt": 1, "steps_hash": _hashes()[status.steps]}
            shown = shown.model_copy(update={**step, "step_started_at": began})
        full = full.model_copy(update={"rollout": shown})
    image = "demo:v2" if asked.target == "t" else "demo:old" if rules.legacy else "demo:v1"
    more: dict[str, Any] = {"spec__rollout": {"strategy": "Canary", "steps": _steps(asked.steps)}}
    if rules.legacy and asked.target == "a":
        more["spec__protocol"] = "Legacy"
    if asked.aborted:
        more["spec__request"] = {"id": "1", "action": "Abort"}
    return wants(image, asked.wanted, full, **more)


def _facts(rules: Rules, world: World, resource: QueueWorker) -> Facts:
    revisions = _revisions(rules)
    both = list(zip(revisions, world.groups, strict=True))
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
        )
        for number, (revision, group) in enumerate(both)
        if group.exists
    )
    if not world.seen:
        nobody = Unknown("nobody could look", START)
        return Facts(Workers(rows, START), nobody, nobody)
    queue = QueueFacts(
        observed_at=START,
        identity=reachable(resource).identity,
        has_registry=True,
        primary=True,
        staging=0,
        reserved=0,
        owned=sum(world.owned),
        delayed=0,
        owned_by={r.name: n for r, n in zip(revisions, world.owned, strict=True) if n},
        fences={
            r.name: "QueueWorker workers/stats-usage: it leaves"
            for r, fenced in zip(revisions, world.fences, strict=True)
            if fenced
        },
        live={
            revision.name: LiveWorkers(group.ready, 0 if world.fences[number] else group.ready)
            for number, (revision, group) in enumerate(both)
            if rules.capable(number)
        },
        quiet_since=None if sum(world.owned) else START - timedelta(seconds=60 if world.quiet else 1),
    )
    return Facts(Workers(rows, START), reachable(resource), queue)


def _short(status: QueueWorkerStatus, index: dict[str, int]) -> Status:
    rollout = status.rollout
    assert rollout is not None
    assert rollout.target is not None
    step, _, _ = (rollout.step or "").partition("/")
    walks = rollout.stage in (*CANARY_STAGES, *WAY_OUT, Stage.PROMOTING, Stage.VALIDATING)
    return Status(
        stable=NAMES[index[status.stable.revision]] if status.stable else "",
        stage=rollout.stage,
        target=NAMES[index[rollout.target]],
        previous=NAMES[index[status.previous]] if status.previous else "",
        step=int(step) if step and walks else 0,
        steps=_hashes().index(rollout.steps_hash) if rollout.steps_hash and walks else -1,
        promoted=status.promoted is not None,
        aborted=status.aborted is not None,
        handled=status.handled_request is not None,
    )


def _put(world: World, index: int, ready: int = 0, stopping: int = 0) -> World:
    group = world.groups[index]
    group = group._replace(ready=group.ready + ready, stopping=group.stopping + stopping)
    return world._replace(groups=_with(world.groups, index, group))


def _scaled(world: World, index: int, number: int) -> World:
    group = world.groups[index]
    ready = min(group.ready, number)
    # One that stops stands for all of them.
    stopping = min(1, group.stopping + group.ready - ready)
    return world._replace(groups=_with(world.groups, index, Group(True, number, ready, stopping)))


def _with(three: tuple[T, T, T], index: int, value: T) -> tuple[T, T, T]:
    changed = list(three)
    changed[index] = value
    return (changed[0], changed[1], changed[2])
