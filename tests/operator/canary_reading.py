"""What the operator reads of the world of a canary, and what it decides then: spec, status and facts out of a
`World`, and back."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, NamedTuple

from queueworker_operator.api.audits import Totals, audit_name
from queueworker_operator.api.gates import (
    AnalysisStatus,
    AuditStatus,
    BooksStatus,
    Counts,
    FoundStatus,
    GateType,
    Verdict,
)
from queueworker_operator.api.reasons import CANARY_STAGES, WAY_OUT, Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.rollout import steps_hash
from queueworker_operator.api.types import QueueWorker, QueueWorkerSpec, QueueWorkerStatus, RolloutStatus
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.audit import (
    NOT_AUDITED,
    AuditAbsent,
    AuditAnswered,
    AuditBroken,
    AuditFact,
    AuditMeasured,
    AuditRefused,
    AuditRuns,
)
from queueworker_operator.plan.facts import Facts, QueueFacts, Unknown, Workers
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import Books, Row
from queueworker_operator.plan.samples import Pair, Sample, Samples
from tests.operator.acting import (
    Todo,
    ago,
    queue_read,
    rows,
    to_do,
)
from tests.operator.canary_world import (
    BROKEN,
    COUNTING,
    FEW,
    GOOD,
    IMPOSSIBLE,
    LAST_OF,
    LATE,
    LOST,
    MORE,
    NAMES,
    OTHER,
    OVER,
    REFUSED,
    RUNS,
    UNKNOWN,
    UNSEEN,
    Rules,
    Status,
    World,
    counts_the_same,
)
from tests.operator.resources import (
    OLD,
    START,
    V1,
    V2,
    image_revision,
    priority_work,
    reachable,
    template,
    wants,
)

P4 = image_revision("demo:v2", spec__prefetch=4)
#: Seconds of the pauses and of the analyses; the second ones are what an edit of the steps makes of them.
LENGTHS = (60, 61)
#: How totals are counted.
AUDITS: dict[str, dict[str, Any]] = {
    "job": {"template": template("demo:audit"), "timeoutSeconds": 60},
    "prometheus": {"url": "http://prometheus:9090", "query": "lost", "settleSeconds": 60},
}
#: What the answers say.
TOTALS = {
    GOOD: Totals(expected=1000, counted=1000, lost=0, duplicates=0),
    LOST: Totals(expected=1000, counted=999, lost=1, duplicates=0),
    MORE: Totals(expected=1000, counted=1001, lost=0, duplicates=0),
    FEW: Totals(expected=0, counted=0, lost=0, duplicates=0),
}


def decide(rules: Rules, world: World) -> tuple[Todo, ...]:
    """What the planner wants done, as `do` understands it."""
    seen = world._replace(pending=(), edits=0, proven=(False, False), broken="", passed=False)
    return _decide(rules, seen)


@cache
def _decide(rules: Rules, world: World) -> tuple[Todo, ...]:
    asked = Asked(world.target, world.wanted, world.steps, world.request)
    resource = _resource(rules, asked, world.status, world.waited)
    decided = plan(resource, _facts(rules, world, resource), START)
    index = {revision.name: number for number, revision in enumerate(_revisions(rules))}
    kinds = [type(action) for action in decided.actions]
    cut = kinds.index(act.WriteStatus) if act.WriteStatus in kinds else len(kinds)
    before, behind = (
        to_do(dataclasses.replace(decided, actions=some), index)
        for some in (decided.actions[:cut], decided.actions[cut:])
    )
    written = _short(decided.status, index)
    waited = _waited(world, decided.status, written)
    if written != world.status or waited != world.waited:
        before.append(("status", written, waited))
    return (*before, *behind)


def _waited(world: World, status: QueueWorkerStatus, written: Status) -> str:
    """How far the time is of what the step waits for, when that is written."""
    audit = status.rollout.analysis.audit if status.rollout and status.rollout.analysis else None
    if audit is None:
        return "" if _begins(status, written) else world.waited
    if counts_the_same(world.status, written):
        return world.waited
    return "" if audit.due_at > START else OVER


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
        some = [GateType.QUEUE_PROGRESS.value, GateType.CPU_EFFICIENCY.value]
        some += [GateType.USAGE_ACCOUNTING.value] if rules.audit else []
        wait = {"analysis": {"durationSeconds": LENGTHS[which], "gates": some}}
    steps = [{"setCanaryScale": {"replicas": 1}}, {"setPrefetch": 4}, wait, {"setPrefetch": 100}, wait]
    rollout: dict[str, Any] = {"strategy": "Canary", "steps": steps}
    if rules.gates:
        rollout["gates"] = [
            {"type": GateType.QUEUE_PROGRESS.value, "minSamples": 1},
            {"type": GateType.CPU_EFFICIENCY.value, "minSamples": 1, "errorLimit": 1},
        ]
        if rules.audit:
            usage = {"type": GateType.USAGE_ACCOUNTING.value, "minSamples": 1, "errorLimit": 1}
            rollout["gates"].append(usage | {rules.audit: AUDITS[rules.audit]})
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
    counts = status.analysis == COUNTING
    since = ago(100 if waited or counts else 0)
    began = since if status.analysis == "begun" else ago(200)
    verdict = Verdict(status.analysis) if status.judged else None
    arm = (P4 if status.step == LAST_OF[0] else V2).name
    audit = None
    if counts:
        name = audit_name("stats-usage", arm, "", began, status.errors)
        due = {"": ago(-5), OVER: START, LATE: ago(1000)}[waited]
        audit = AuditStatus(name=name, due_at=due, ended=_no_books(ago(20)))
    kept = [FoundStatus(type=type_, verdict=Verdict.PASSED, message="well") for type_ in analysis.gates or ()]
    return AnalysisStatus(
        revision=arm,
        settings=analysis.fingerprint(spec.gates),
        began=_no_books(began),
        began_at=began,
        measured=None if status.analysis == "begun" else _no_books(since),
        errors=status.errors,
        found=tuple(kept) if counts else (),
        audit=audit,
        verdict=verdict,
        message="a gate did not pass" if verdict else None,
    )


def _no_books(at: Any) -> BooksStatus:
    return BooksStatus(at=at, server="one", canary=Counts(), stable=Counts())


def _facts(rules: Rules, world: World, resource: QueueWorker) -> Facts:
    revisions = _revisions(rules)
    workers = Workers(rows(revisions, world.groups, ago(1 if world.young else 150)), START)
    if not world.seen:
        nobody = Unknown("nobody could look", START)
        return Facts(workers, nobody, nobody)
    check = reachable(resource)
    queue = queue_read(check, revisions, world, sum(world.owned), has_registry=not rules.nats)
    facts = Facts(workers, check, queue)
    if rules.nats:
        work = priority_work(world.priority, ago(60 if world.drained else 1))
        facts = dataclasses.replace(facts, broker=dataclasses.replace(check, priority=work))
    if rules.audit:
        facts = dataclasses.replace(facts, audit=_audit(rules, world, resource))
    return _measured(rules, facts, queue, world.waited) if rules.gates else facts


def _audit(rules: Rules, world: World, resource: QueueWorker) -> AuditFact:
    """What the operator knows of whoever counts."""
    rollout = resource.status.rollout
    audit = rollout.analysis.audit if rollout and rollout.analysis else None
    if audit is None and world.audit == OTHER:
        return AuditAnswered("stats-usage-audit-0", TOTALS[GOOD])
    if audit is None:
        return AuditRefused("the API server says: no") if world.audit == IMPOSSIBLE else NOT_AUDITED
    name, job = audit.name, rules.audit == "job"
    if world.audit in TOTALS or world.audit == OTHER:
        name = f"{name}0" if world.audit == OTHER else name
        totals = TOTALS.get(world.audit, TOTALS[GOOD])
        return AuditAnswered(name, totals) if job else AuditMeasured(name, totals.lost)
    if world.audit in (BROKEN, REFUSED):
        return AuditBroken(name, "ended with exit code 3.")
    if world.audit == UNSEEN:
        return Unknown("nobody could look", START)
    if world.audit == RUNS:
        return AuditRuns(name)
    return AuditAbsent(name) if job else NOT_AUDITED


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
        phase = COUNTING if analysis.audit else phase
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
        errors=analysis.errors if analysis is not None and phase in ("measured", COUNTING) else 0,
    )


@cache
def _known_hashes() -> dict[str, int]:
    every = (Rules(False), Rules(False, gates="Abort"), Rules(False, gates="Abort", audit="job"))
    return {one: which for rules in every for which, one in enumerate(_hashes(rules))}
