"""A world of a canary that is explored whole: the stable revision a, arms p and t of the next version, of
which t is promoted, and everything that may happen to them.

Its two arms are waited with, or measured: then each window ends in one of the verdicts, whichever the world
likes. The operator reads them as everywhere, out of the books of the broker and the samples of the workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from queueworker_operator.api.gates import AnalysisStatus, BooksStatus, Counts, GateType, Verdict
from queueworker_operator.api.reasons import CANARY_STAGES, WAY_OUT, Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.rollout import steps_hash
from queueworker_operator.api.types import QueueWorker, QueueWorkerSpec, QueueWorkerStatus, RolloutStatus
from queueworker_operator.plan.facts import Facts, QueueFacts, Unknown, Workers
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import Books, Row
from queueworker_operator.plan.samples import Pair, Sample, Samples
from tests.operator.acting import (
    Group,
    Todo,
    ago,
    broker_moves,
    done,
    priority_moves,
    queue_read,
    rows,
    to_do,
    with_,
    workers_move,
)
from tests.operator.resources import (
    OLD,
    START,
    V1,
    V2,
    image_revision,
    priority_work,
    reachable,
    wants,
)

NAMES = "apt"
P4 = image_revision("demo:v2", spec__prefetch=4)
#: Seconds of the pauses and of the analyses; the second ones are what an edit of the steps makes of them.
LENGTHS = (60, 61)
#: Steps, counted from 1, that are over when p, and when t, was seen to run as it should.
LAST_OF = (3, 5)
#: What gates may say of a window: each verdict, and that nobody knows, since nobody looked for a while.
UNKNOWN = "Unknown"
SAYS = (*(v.value for v in Verdict if v is not Verdict.WAIVED), UNKNOWN)
#: The time of a pause, or of a warm-up, has gone by.
OVER = "over"
#: What a person may do, once.
EVERYTHING = ("version", "steps", "loss", "Abort", "Retry", "SkipStep", "Promote")

Happening = tuple[str, "World"]


class Status(NamedTuple):
    """What the operator reads back of its own status. Empty names are absent."""

    stable: str
    stage: Stage = Stage.IDLE
    target: str = ""
    previous: str = ""
    #: The step, counted from 1; which steps they are, as an index into LENGTHS.
    step: int = 0
    steps: int = -1
    promoted: bool = False
    aborted: bool = False
    handled: bool = False
    #: Who is on the way out.
    leaving: str = ""
    #: The analysis at that step: "", "begun", "measured" (since when the window counts), or a verdict; and
    #: how often nobody could look at its end.
    analysis: str = ""
    errors: int = 0

    @property
    def judged(self) -> bool:
        return self.analysis not in ("", "begun", "measured")


class World(NamedTuple):
    target: str
    wanted: int
    groups: tuple[Group, ...]
    owned: tuple[int, ...]
    fences: tuple[bool, ...]
    seen: bool
    quiet: bool
    status: Status
    #: Of what the step waits for, since it began: "", OVER, or what the gates would say of the window.
    waited: str = ""
    #: Which of the two lengths the steps of the spec have.
    steps: int = 0
    #: What a person requests; a new id where the status says that none was answered.
    request: str = ""
    #: Not for the operator: which arms ran as they should when it looked and the time had gone by, and passed
    #: where they were measured, since the steps last began.
    proven: tuple[bool, bool] = (False, False)
    pending: tuple[Todo, ...] = ()
    edits: int = 0
    #: The arm that cannot start, if any.
    broken: str = ""
    #: Messages on the subject that only workers of a take; whether it was empty for the ack wait; whether a
    #: worker of a started within the ack wait.
    priority: int = 0
    drained: bool = False
    young: bool = False


class Rules(NamedTuple):
    """Which image speaks what, and what the steps are."""

    legacy: bool
    #: There is a subject of which only Legacy workers take, and no registry.
    nats: bool = False
    #: The arms are measured; what follows where they do not pass, Abort or Pause. Empty: they are waited
    #: with.
    gates: str = ""
    may: tuple[str, ...] = ("version", "steps", "loss", "Abort")

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


def proved(rules: Rules, world: World) -> World:
    """An operator that looks now sees an arm that runs as it should, after its time. A person may answer for
    the arms, too."""
    status = world.status
    if world.request in ("SkipStep", "Promote") and not status.handled:
        return world._replace(proven=(True, True))
    if not (world.seen and world.waited and world.target == "t") or status.steps != world.steps:
        return world
    if rules.gates and not (status.analysis == "measured" and world.waited == Verdict.PASSED):
        return world
    p, t = (
        known or (status.step == LAST_OF[arm - 1] and in_force(world, arm))
        for arm, known in enumerate(world.proven, 1)
    )
    return world._replace(proven=(p, t))


# -- what may happen -----------------------------------------------------------------------------------


def what_may_happen(rules: Rules, world: World, limit: int) -> Iterator[Happening]:
    """What may happen without the operator. `limit` bounds what is owned."""
    yield from workers_move(NAMES, world, dies=(1, 2), broken=world.broken, nats=rules.nats)
    yield from _queue(rules, world, limit)
    if rules.nats:
        yield from priority_moves(world)
    yield from broker_moves(world, sum(world.owned))
    yield from _time(world)
    if world.edits:
        left = world._replace(edits=world.edits - 1)
        again = left._replace(proven=(False, False))
        # Where a is gone already, t has taken over by the steps that there were.
        other_steps = again if world.groups[0].exists else left
        other = "at"[world.target == "a"]
        edits = {
            "version": ("somebody asks for the other version", left._replace(target=other)),
            "steps": ("somebody changes the steps", other_steps._replace(steps=1 - world.steps, waited="")),
            "loss": ("the status is lost", again._replace(status=Status(""), waited="")),
        }
        for what in rules.may:
            yield edits.get(what) or (f"somebody requests {what}", left._replace(request=what))


def _time(world: World) -> Iterator[Happening]:
    status = world.status
    if status.analysis == "measured":
        # An operator that could ask nobody asks again, and may hear something else.
        if world.waited in ("", Verdict.ERROR):
            for said in SAYS:
                if said != world.waited:
                    yield f"the window is over, of which the gates say {said}", world._replace(waited=said)
    elif status.step and not status.judged and not world.waited:
        yield "the time of the step goes by", world._replace(waited=OVER)


def _queue(rules: Rules, world: World, limit: int) -> Iterator[Happening]:
    if not world.seen:
        return
    moved = world._replace(quiet=False)
    for index, group in enumerate(world.groups):
        if not rules.capable(index):
            continue
        name, owned = NAMES[index], world.owned[index]
        if group.ready and not world.fences[index] and sum(world.owned) < limit:
            yield f"a worker of {name} takes one", moved._replace(owned=with_(world.owned, index, owned + 1))
        if (group.ready or group.stopping) and owned:
            yield f"a worker of {name} settles", moved._replace(owned=with_(world.owned, index, owned - 1))
        elif owned and rules.live_capable(world):
            text = f"a worker takes over from {name}"
            yield text, moved._replace(owned=with_(world.owned, index, owned - 1))


# -- what the operator does ----------------------------------------------------------------------------


def do(world: World) -> Iterator[Happening]:
    """The operator's next action."""

    def recovered(after: World, who: str) -> Iterator[Happening]:
        for index, owned in enumerate(world.owned):
            if owned:
                taken = after._replace(owned=with_(world.owned, index, owned - 1), quiet=False)
                yield f"{who} takes over from {NAMES[index]}", taken

    def written(after: World, action: Todo) -> Happening:
        _, status, anew = action
        assert isinstance(status, Status)
        text = f"the operator writes {status.stage} {status.step}, stable {status.stable}"
        if status.analysis:
            text += f", analysis {status.analysis}"
        return text, after._replace(status=status, waited="" if anew else world.waited)

    yield from done(NAMES, world, recovered, written)


def decide(rules: Rules, world: World) -> tuple[Todo, ...]:
    """What the planner wants done, as `do` understands it."""
    return _decide(rules, world._replace(pending=(), edits=0, proven=(False, False), broken=""))


@cache
def _decide(rules: Rules, world: World) -> tuple[Todo, ...]:
    asked = Asked(world.target, world.wanted, world.steps, world.request)
    resource = _resource(rules, asked, world.status, world.waited)
    decided = plan(resource, _facts(rules, world, resource), START)
    index = {revision.name: number for number, revision in enumerate(_revisions(rules))}
    pending = to_do(decided, index)
    written = _short(decided.status, index)
    anew = _begins(decided.status, written)
    if written != world.status or (anew and world.waited):
        pending.append(("status", written, anew))
    return tuple(pending)


def _begins(status: QueueWorkerStatus, written: Status) -> bool:
    """Whether the time of what the step waits for begins with this pass, or nothing is waited for."""
    rollout = status.rollout
    if not written.step or rollout is None or rollout.step_started_at is None:
        return True
    if rollout.analysis is None:
        return rollout.step_started_at == START
    measured = rollout.analysis.measured
    return written.judged or (measured.at if measured else rollout.analysis.began_at) == START


# -- what it reads -------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What the spec says."""

    target: str
    wanted: int
    steps: int
    request: str


@cache
def _revisions(rules: Rules) -> tuple[Revision, ...]:
    return (OLD if rules.legacy else V1, P4, V2)


@cache
def _rollout(rules: Rules, which: int) -> dict[str, Any]:
    wait: dict[str, Any] = {"pause": {"durationSeconds": LENGTHS[which]}}
    if rules.gates:
        two = [GateType.QUEUE_PROGRESS.value, GateType.CPU_EFFICIENCY.value]
        wait = {"analysis": {"durationSeconds": LENGTHS[which], "gates": two}}
    steps = [{"setCanaryScale": {"replicas": 1}}, {"setPrefetch": 4}, wait, {"setPrefetch": 100}, wait]
    rollout: dict[str, Any] = {"strategy": "Canary", "steps": steps}
    if rules.gates:
        rollout["gates"] = [
            {"type": GateType.QUEUE_PROGRESS.value, "minSamples": 1},
            {"type": GateType.CPU_EFFICIENCY.value, "minSamples": 1, "errorLimit": 1},
        ]
        rollout |= {"onFailure": rules.gates, "onInconclusive": rules.gates}
    return rollout


@cache
def _spec(rules: Rules, which: int) -> QueueWorkerSpec:
    return wants("demo:v2", 1, spec__rollout=_rollout(rules, which)).spec


@cache
def _hashes(rules: Rules) -> tuple[str, ...]:
    return tuple(steps_hash(_spec(rules, which).steps) for which in (0, 1))


@cache
def _resource(rules: Rules, asked: Asked, status: Status, waited: str) -> QueueWorker:
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
            leaving=by_name[status.leaving].name if status.leaving else None,
        )
        if status.step:
            step = {"step": f"{status.step}/5", "attempt": 1, "steps_hash": _hashes(rules)[status.steps]}
            began = ago(100 if waited or status.analysis else 0)
            analysis = _analysis(rules, status, waited) if status.analysis else None
            shown = shown.model_copy(update={**step, "step_started_at": began, "analysis": analysis})
        full = full.model_copy(update={"rollout": shown})
    image = "demo:v2" if asked.target == "t" else "demo:old" if rules.legacy else "demo:v1"
    more: dict[str, Any] = {"spec__rollout": _rollout(rules, asked.steps)}
    if rules.legacy and asked.target == "a":
        more["spec__protocol"] = "Legacy"
    if asked.request:
        more["spec__request"] = {"id": "1", "action": asked.request}
    return wants(image, asked.wanted, full, **more)


def _analysis(rules: Rules, status: Status, waited: str) -> AnalysisStatus:
    """What the status has of it. The window, and before it the warm-up, began long ago where it is over."""
    spec = _spec(rules, status.steps)
    analysis = spec.steps[status.step - 1].analysis
    assert analysis is not None
    since = ago(100 if waited else 0)
    began = since if status.analysis == "begun" else ago(200)
    verdict = Verdict(status.analysis) if status.judged else None
    return AnalysisStatus(
        revision=(P4 if status.step == LAST_OF[0] else V2).name,
        settings=analysis.fingerprint(spec.gates),
        began=_no_books(began),
        began_at=began,
        measured=None if status.analysis == "begun" else _no_books(since),
        errors=status.errors,
        verdict=verdict,
        message="a gate did not pass" if verdict else None,
    )


def _no_books(at: Any) -> BooksStatus:
    return BooksStatus(at=at, server="one", canary=Counts(), stable=Counts())


def _facts(rules: Rules, world: World, resource: QueueWorker) -> Facts:
    revisions = _revisions(rules)
    workers = Workers(rows(revisions, world.groups, ago(1 if world.young else 60)), START)
    if not world.seen:
        nobody = Unknown("nobody could look", START)
        return Facts(workers, nobody, nobody)
    check = reachable(resource)
    queue = queue_read(check, revisions, world, sum(world.owned), has_registry=not rules.nats)
    facts = Facts(workers, check, queue)
    if rules.nats:
        work = priority_work(world.priority, ago(60 if world.drained else 1))
        facts = dataclasses.replace(facts, broker=dataclasses.replace(check, priority=work))
    return _measured(rules, facts, queue, world.waited) if rules.gates else facts


def _measured(rules: Rules, facts: Facts, queue: QueueFacts, says: str) -> Facts:
    """What leads the gates to that verdict."""
    a, *arms = _revisions(rules)
    committed = 0 if says == Verdict.INCONCLUSIVE else 1000
    books = Books(
        server="one",
        rows={
            **({} if rules.legacy else {a.name: Row(claimed=1000, committed=1000)}),
            **{arm.name: Row(claimed=committed, committed=committed) for arm in arms},
        },
        # More than prefetch and coroutines allow.
        owned={arm.name: {"one": 500} for arm in arms} if says == Verdict.FAILED else {},
        committed=1000 + 2 * committed,
        failed=0,
        backlog_since=None,
    )
    since = ago(100)
    samples: Samples | Unknown = Unknown("no worker could be asked", START)
    if says != Verdict.ERROR:
        ends = [
            Sample(at, 0.0, cpu, settled, (), ()) for at, cpu, settled in ((since, 0, 0), (START, 1, 1000))
        ]
        samples = Samples(since, {r.name: (Pair(*ends),) for r in (a, *arms)})
    watched = dataclasses.replace(queue, books=books, watched_since=START if says == UNKNOWN else ago(300))
    return dataclasses.replace(facts, queue=watched, samples=samples)


def _short(status: QueueWorkerStatus, index: dict[str, int]) -> Status:
    rollout = status.rollout
    assert rollout is not None
    assert rollout.target is not None
    step, _, _ = (rollout.step or "").partition("/")
    walks = rollout.stage in (
        *CANARY_STAGES,
        *WAY_OUT,
        Stage.PROMOTING,
        Stage.VALIDATING,
        Stage.DRAINING_LEGACY,
    )
    analysis = rollout.analysis if walks and step else None
    phase = ""
    if analysis is not None:
        phase = analysis.verdict or ("measured" if analysis.measured else "begun")
    hashes = _known_hashes()
    return Status(
        stable=NAMES[index[status.stable.revision]] if status.stable else "",
        stage=rollout.stage,
        target=NAMES[index[rollout.target]],
        previous=NAMES[index[status.previous]] if status.previous else "",
        step=int(step) if step and walks else 0,
        steps=hashes[rollout.steps_hash] if rollout.steps_hash and walks else -1,
        promoted=status.promoted is not None,
        aborted=status.aborted is not None,
        handled=status.handled_request is not None,
        leaving=NAMES[index[rollout.leaving]] if rollout.leaving and rollout.stage in WAY_OUT else "",
        analysis=str(phase),
        errors=analysis.errors if analysis is not None and phase == "measured" else 0,
    )


@cache
def _known_hashes() -> dict[str, int]:
    every = (Rules(False), Rules(False, gates="Abort"))
    return {one: which for rules in every for which, one in enumerate(_hashes(rules))}
