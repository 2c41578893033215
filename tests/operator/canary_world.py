"""A world of a canary that is explored whole: the stable revision a, arms p and t of the next version, of
which t is promoted, and everything that may happen to them.

Its two arms are waited with, or measured: then each window ends in one of the verdicts, whichever the world
likes. The operator reads them as everywhere, out of the books of the broker and the samples of the workers.
Where totals are counted besides, whoever counts may run, answer anything, fail, be refused and be gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from queueworker_operator.api.gates import (
    Verdict,
)
from queueworker_operator.api.reasons import Stage
from tests.operator.acting import (
    Group,
    Todo,
    broker_moves,
    done,
    priority_moves,
    with_,
    workers_move,
)

NAMES = "apt"
#: Steps, counted from 1, that are over when p, and when t, was seen to run as it should.
LAST_OF = (3, 5)
#: What gates may say of a window: each verdict, and that nobody knows, since nobody looked for a while.
UNKNOWN = "Unknown"
SAYS = (*(v.value for v in Verdict if v is not Verdict.WAIVED), UNKNOWN)
#: The time of a pause, of a warm-up, or until totals may be counted has gone by; that for the answer, too.
OVER, LATE = "over", "late"
#: What the status says while totals are counted.
COUNTING = "counting"
#: Whoever counts: not there; at work; refused when it is made; there, and nobody could look; what is read is
#: of another one; not to be made at all, of whatever name; and removed by the operator itself.
ABSENT, RUNS, REFUSED, UNSEEN, OTHER, IMPOSSIBLE, REMOVED = (
    *("", "runs", "refused", "unseen", "other", "impossible"),
    "removed",
)
#: How it ends: with an answer, of which only the first one is good, or in another way.
GOOD, LOST, MORE, FEW, BROKEN = "good", "lost", "more", "few", "broken"
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
    #: The analysis at that step: "", "begun", "measured" (since when the window counts), COUNTING, or a
    #: verdict; and how often nobody could look at its end, or gave no answer.
    analysis: str = ""
    errors: int = 0

    @property
    def judged(self) -> bool:
        return self.analysis not in ("", "begun", "measured", COUNTING)


class World(NamedTuple):
    target: str
    wanted: int
    groups: tuple[Group, ...]
    owned: tuple[int, ...]
    fences: tuple[bool, ...]
    seen: bool
    quiet: bool
    status: Status
    #: Of what the step waits for, since it began: "", OVER, LATE, or what the gates would say of the window.
    waited: str = ""
    #: Whoever counts totals, by the name that the status has.
    audit: str = ABSENT
    #: Not for the operator: the gates passed the window that is counted.
    passed: bool = False
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
    #: Who counts totals besides, "job" or "prometheus", if anybody does.
    audit: str = ""
    may: tuple[str, ...] = ("version", "steps", "loss", "Abort")

    @property
    def says(self) -> tuple[str, ...]:
        """What gates may say. Where totals are counted, only what leads there, or counts as an error, too."""
        return (Verdict.PASSED, Verdict.ERROR, UNKNOWN) if self.audit else SAYS

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
    if rules.audit and not (status.analysis == COUNTING and world.passed and world.audit == GOOD):
        return world
    if rules.gates and not rules.audit and (status.analysis, world.waited) != ("measured", Verdict.PASSED):
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
    yield from _time(rules, world)
    if rules.audit:
        yield from _audit_moves(rules, world)
    if world.edits:
        left = world._replace(edits=world.edits - 1)
        again = left._replace(proven=(False, False))
        # Where a is gone already, t has taken over by the steps that there were.
        other_steps = again if world.groups[0].exists else left
        other = "at"[world.target == "a"]
        edits = {
            "version": ("somebody asks for the other version", left._replace(target=other)),
            "steps": ("somebody changes the steps", other_steps._replace(steps=1 - world.steps, waited="")),
            "loss": (
                "the status is lost",
                again._replace(status=Status(""), waited="", audit=ABSENT, passed=False),
            ),
        }
        for what in rules.may:
            yield edits.get(what) or (f"somebody requests {what}", left._replace(request=what))


def _time(rules: Rules, world: World) -> Iterator[Happening]:
    status = world.status
    if status.analysis == COUNTING:
        if not world.waited:
            yield "the time until totals are counted goes by", world._replace(waited=OVER)
        elif world.waited == OVER and world.audit in (ABSENT, RUNS, UNSEEN):
            yield "the time for an answer goes by", world._replace(waited=LATE)
    elif status.analysis == "measured":
        # An operator that could ask nobody asks again, and may hear something else.
        if world.waited in ("", Verdict.ERROR):
            for said in rules.says:
                if said != world.waited:
                    yield f"the window is over, of which the gates say {said}", world._replace(waited=said)
    elif status.step and not status.judged and not world.waited:
        yield "the time of the step goes by", world._replace(waited=OVER)


def _audit_moves(rules: Rules, world: World) -> Iterator[Happening]:
    """What becomes of whoever counts, without the operator."""
    job = rules.audit == "job"
    moves: dict[str, tuple[str, ...]] = {}
    if world.status.analysis == COUNTING and world.waited:
        ends = (GOOD, LOST, BROKEN, *((MORE, FEW) if job else ()))
        gone = (ABSENT,) if job else ()
        moves = {
            # A Prometheus is asked as soon as it is due; of a Job nobody knows that the planner did not make.
            ABSENT: () if job else (RUNS,),
            RUNS: (*ends, UNSEEN, OTHER, *gone),
            UNSEEN: (RUNS,),
            OTHER: (RUNS,),
            # Another operator does not know that it was refused, or what the Prometheus said.
            **dict.fromkeys((REFUSED, REMOVED), (ABSENT,)),
            **dict.fromkeys((*ends, MORE, FEW), (ABSENT,)),
        }
    elif job and world.status.analysis in ("begun", "measured"):
        moves = {ABSENT: (IMPOSSIBLE, OTHER), IMPOSSIBLE: (ABSENT,), OTHER: (ABSENT,)}
    for audit in moves.get(world.audit, ()):
        yield f"whoever counts: {audit or 'gone'}", world._replace(audit=audit)


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
        _, status, waited = action
        assert isinstance(status, Status)
        assert isinstance(waited, str)
        text = f"the operator writes {status.stage} {status.step}, stable {status.stable}"
        if status.analysis:
            text += f", analysis {status.analysis}"
        return text, _counted(world, after._replace(status=status, waited=waited))

    after = world._replace(pending=world.pending[1:])
    match world.pending[0]:
        case ("count",):
            yield "the API server refuses the Job", after._replace(audit=REFUSED)
            yield "the operator has totals counted", after._replace(audit=RUNS)
        case ("stop counting",):
            # Which the status names still, unless another one was written before.
            named = any(todo[0] == "status" for todo in after.pending)
            yield "the operator removes who counts", after._replace(audit=REMOVED) if named else after
        case _:
            yield from done(NAMES, world, recovered, written)


def _counted(before: World, after: World) -> World:
    """Who counts is known by what the status says: with another status it is another one."""
    was, is_ = before.status, after.status
    if is_.analysis == COUNTING and was.analysis != COUNTING:
        passed = before.seen and before.waited == Verdict.PASSED
        return after._replace(audit=ABSENT, passed=passed)
    if counts_the_same(was, is_) or {was.analysis, is_.analysis} == {"begun", "measured"}:
        return after
    return after._replace(audit=ABSENT, passed=after.passed and is_.analysis == COUNTING)


def counts_the_same(was: Status, is_: Status) -> bool:
    return (was.analysis, was.errors, was.step, was.steps) == (
        is_.analysis,
        is_.errors,
        is_.step,
        is_.steps,
    )
