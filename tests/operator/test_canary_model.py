"""Every state that a canary of two arms can get into, and the promises that hold in each.

S1 never retire the last consumer that could recover what is held before nothing is.
S2 never promote before both arms ran as they should and, where they are measured, passed; where totals are
   counted, not without a good answer about that window; never on what could not be seen; unless a person says
   so.
S3 never two stable revisions.
S4 older workers stay, and no other starts and no step is over, while work exists that only they take.
S5 whatever was begun ends in Idle once the broker answers, and a person does where only a person may.
S6 a queue is never left without a receiver by the operator's doing.
Totals are counted once for each window that passed, by whoever the status names, and for nobody else.
And never more workers than are wanted, a canary, and a canary that is to leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from queueworker_operator.api.gates import Verdict
from queueworker_operator.api.reasons import Stage
from tests.operator.acting import NONE, Group, Todo, look_at, priority_is_gone
from tests.operator.canary_reading import decide
from tests.operator.canary_world import (
    ABSENT,
    BROKEN,
    COUNTING,
    EVERYTHING,
    FEW,
    GOOD,
    LAST_OF,
    LATE,
    LOST,
    MORE,
    NAMES,
    OTHER,
    OVER,
    REFUSED,
    RUNS,
    SAYS,
    UNKNOWN,
    UNSEEN,
    Happening,
    Rules,
    Status,
    World,
    counts_the_same,
    do,
    in_force,
    proved,
    what_may_happen,
)
from tests.operator.exploring import Explored

#: Counted in states and not in seconds, so a busy machine has its time: the largest world takes minutes.
pytestmark = pytest.mark.timeout(3600)


def begin(wanted: int, edits: int = 0, broken: str = "") -> World:
    return World(
        target="t",
        wanted=wanted,
        groups=(Group(True, wanted, wanted), NONE, NONE),
        owned=(0, 0, 0),
        fences=(False, False, False),
        seen=True,
        quiet=False,
        status=Status("a", Stage.IDLE, "a"),
        edits=edits,
        broken=broken,
    )


class Checked(Explored[World]):
    """The promises in each state."""

    def __init__(self, rules: Rules, start: World, limit: int = 0) -> None:
        super().__init__(start)
        self.rules, self.limit = rules, limit
        self.promoted = False

    def happens(self, world: World) -> Iterator[Happening]:
        return what_may_happen(self.rules, world, self.limit)

    def decide(self, world: World) -> tuple[Todo, ...]:
        return decide(self.rules, world)

    def do(self, world: World) -> Iterator[Happening]:
        return do(world)

    def looks(self, world: World) -> World:
        return proved(self.rules, world)

    # -- promises ----------------------------------------------------------------------------------

    def check_decision(self, world: World, decided: Sequence[Todo]) -> None:
        receivers, after = self.rules.receivers(world), world
        # A status that is lost when t already serves alone: there is nothing left to compare it with.
        nobody_else = not world.status.stable and not any(g.desired for g in world.groups[:2])
        all_proven = all(world.proven) or nobody_else
        for action in decided:
            match action:
                case ("scale", int(index), 0) if self.rules.capable(index) and world.groups[index].ready:
                    others = self.rules.successors(world, index)
                    proven = world.seen and world.quiet and not sum(world.owned) and world.fences[index]
                    proven = proven or (self.rules.nats and world.fences[index])  # nothing to recover from
                    self.promise(bool(others or proven), world, "S1: the last capable consumer is retired")
                case ("scale", 2, int(number)) if number > 1 and world.groups[2].desired < number:
                    # Once that is written down, workers may come while the broker is away, as in any change.
                    done = world.status.promoted or (all_proven and world.seen)
                    self.promise(done, world, "S2: it takes over before the steps are done")
                case ("status", Status(stable="t"), _) if world.status.stable != "t":
                    self.promoted = True
                    self.promise(world.seen, world, "S2: promoted without a broker")
                    self.promise(all_proven, world, "S2: promoted before its steps are done")
                    beside = [g for g in world.groups[:2] if g.desired or g.ready or g.stopping]
                    self.promise(not beside, world, "S3: promoted beside another revision")
                case ("status", Status() as status, _):
                    self.check_steps(world, status)
            if action == ("fence", 0):
                back = not world.wanted or world.status.previous == "t"
                self.promise(back, world, "S6: what serves is fenced in a change forward")
            if world.target == "t" and action[:2] == ("scale", 0) and action[2] == 0:
                self.promise(all_proven, world, "S2: a is retired before the steps are done")
            self.check_priority(world, action)
            if action == ("count",):
                wanted = (
                    world.passed and world.seen and world.waited == OVER and world.status.analysis == COUNTING
                )
                self.promise(wanted, world, "totals are counted for a window that did not pass, or too soon")
                self.promise(world.audit == ABSENT, world, "totals are counted twice for one window")
            if world.seen:
                *_, (_, after) = do(after._replace(pending=(action,)))
                left = self.rules.receivers(after)
                self.promise(bool(left or not receivers), world, f"S6: nobody receives after {action}")
        self.check_removal(world, decided)
        total = sum(group.desired for group in after.groups)
        before = sum(group.desired for group in world.groups)
        most = max(2 * world.wanted, world.wanted + 2)
        self.promise(total <= max(most, before), world, f"there are {total} workers")

    def check_steps(self, world: World, status: Status) -> None:
        """A step that waits or measures is over only when that is proven."""
        was = world.status
        if status.promoted and not was.promoted:
            asked = world.request in ("SkipStep", "Promote") and not was.handled
            self.promise(world.seen or asked, world, "S2: the steps are over, and nobody sees the broker")
        if world.target != "t" or status.steps != was.steps or status.aborted:
            return
        if self.rules.nats and world.groups[0].exists and status.step > was.step > 0:
            self.promise(priority_is_gone(world), world, "S4: a step is over while work is left for a alone")
        over = (status.step > last or status.promoted for last in LAST_OF)
        for name, is_over, proven in zip(NAMES[1:], over, world.proven, strict=True):
            if was.step and is_over:
                self.promise(
                    proven, world, f"S2: the step of {name} is over, and what it asks for is not proven"
                )

    def check_removal(self, world: World, decided: Sequence[Todo]) -> None:
        """Whoever counts is removed when the status does not name it any longer, and not before that is
        written: an answer that somebody acted on is not asked for again."""
        names = [one[1] for one in decided if one[0] == "status" and isinstance(one[1], Status)]
        counts = world.status.analysis == COUNTING
        over = counts and bool(names) and not counts_the_same(world.status, names[0])
        removed = ("stop counting",) in decided
        self.promise(removed == over, world, "who counts is left behind, or removed while it is waited for")
        if removed:
            self.promise(
                decided[-1] == ("stop counting",), world, "who counts is removed before that is written"
            )

    def check_priority(self, world: World, action: Todo) -> None:
        if not self.rules.nats or world.target != "t":
            return
        older = world.groups[0]
        gone = priority_is_gone(world)
        match action:
            case ("scale", 0, int(number)) if number < older.desired:
                self.promise(gone, world, "S4: an older worker is stopped that has work of its own")
            case ("scale", int(arm), int(number)) if arm and number:
                begins = not (world.groups[arm].desired or world.groups[arm].stopping)
                first = older.exists and world.status.stable == "a" and begins
                self.promise(gone or not first, world, f"S4: {NAMES[arm]} starts too soon")

    def check_end(self, world: World, end: World) -> None:
        """S5, and nothing is left where a Legacy worker cannot read it."""
        status = end.status
        serves = "a" if end.target == "a" or status.aborted else "t"
        if serves == "t" and end.broken:
            return  # to be taken back; nothing else is promised
        others = [g for name, g in zip(NAMES, end.groups, strict=True) if name != serves and g.exists]
        done = status.stage is Stage.IDLE and status.stable == serves and not others
        self.promise(done, world, f"S5: it ends in {end}")
        stranded = sum(end.owned) and not self.rules.live_capable(end)
        self.promise(not stranded, world, f"S5: work is left where nobody reads it: {end}")

    def all_goes_well(self, world: World) -> World:
        """Time goes by, too, and a person has measured again what did not pass."""
        groups = tuple(
            g._replace(ready=0 if name == world.broken else g.desired, stopping=0) if g.exists else g
            for name, g in zip(NAMES, world.groups, strict=True)
        )
        status = world.status
        answered = not world.request or status.handled
        if status.judged and self.rules.gates == "Pause" and answered:
            world = world._replace(request="Retry", status=status._replace(handled=False))
        waited = Verdict.PASSED.value if status.analysis == "measured" else OVER if status.step else ""
        if status.analysis == COUNTING and world.waited == LATE:
            waited = LATE
        world = world._replace(seen=True, waited=waited, groups=groups, audit=self.answered(world))
        if self.rules.live_capable(world):
            world = world._replace(owned=(0, 0, 0))
        if groups[0].ready:
            world = world._replace(priority=0)
        world = world._replace(quiet=not sum(world.owned), drained=not world.priority, young=False)
        return self.one_pass(proved(self.rules, world))

    def answered(self, world: World) -> str:
        """What becomes of whoever counts when all goes well."""
        if world.status.analysis != COUNTING:
            return ABSENT
        asked = world.audit == ABSENT and self.rules.audit == "prometheus"
        return GOOD if asked or world.audit in (RUNS, UNSEEN, OTHER) else world.audit

    def look(self, world: World) -> str:
        waited = f"; of the step {world.waited}" if world.waited else ""
        waited += f"; who counts {world.audit}" if world.audit else ""
        asked = f"; requested {world.request}" if world.request else ""
        proven = [name for name, known in zip(NAMES[1:], world.proven, strict=True) if known] or "nothing"
        told = world.status._asdict() | {"stage": str(world.status.stage)}
        status = ", ".join(f"{key} {value}" for key, value in told.items() if value not in ("", 0, -1, False))
        return (
            f"{look_at(NAMES, world)}; owned {world.owned}{waited}{asked}; proven: {proven}; status: {status}"
        )


WAITED, MEASURED = Rules(False), Rules(False, gates="Pause")
AUDITED, ASKED = MEASURED._replace(audit="job"), MEASURED._replace(audit="prometheus")
QUICK = [
    pytest.param(WAITED, 1, 1, "", 0, id="one worker, one thing that a person does"),
    pytest.param(Rules(True), 1, 0, "", 1, id="one worker beside Legacy"),
    pytest.param(WAITED, 2, 0, "", 0, id="two workers"),
    pytest.param(MEASURED, 1, 0, "", 0, id="measured, any verdict, until a person does something"),
    pytest.param(Rules(False, gates="Abort"), 1, 0, "", 0, id="measured, any verdict, or back"),
    pytest.param(AUDITED, 1, 0, "", 0, id="totals counted by a Job, any answer"),
    pytest.param(Rules(True, nats=True), 1, 0, "", 0, id="work that only older workers take"),
]
ALL_OF_IT = [
    pytest.param(WAITED, 2, 1, "", 0, id="two workers"),
    pytest.param(Rules(True), 2, 1, "", 0, id="two workers beside Legacy"),
    pytest.param(WAITED, 1, 1, "", 1, id="one message"),
    pytest.param(Rules(True), 1, 1, "", 1, id="one message beside Legacy"),
    pytest.param(WAITED, 1, 1, "p", 1, id="the first arm cannot start"),
    pytest.param(Rules(True), 1, 1, "t", 1, id="the second arm cannot start beside Legacy"),
    pytest.param(MEASURED._replace(may=EVERYTHING), 1, 1, "", 0, id="measured, and a person does something"),
    pytest.param(MEASURED, 2, 0, "", 0, id="two workers, measured"),
    pytest.param(ASKED, 1, 0, "", 0, id="totals asked of a Prometheus, any answer"),
    pytest.param(AUDITED._replace(may=("loss",)), 1, 1, "", 0, id="totals counted, and the status is lost"),
    pytest.param(AUDITED._replace(gates="Abort"), 1, 0, "", 0, id="totals counted, or back"),
    pytest.param(Rules(True, gates="Abort"), 1, 1, "", 0, id="measured beside Legacy, or back"),
    pytest.param(
        Rules(True, nats=True), 1, 1, "", 0, id="work for older workers, and a person does something"
    ),
    pytest.param(Rules(True, nats=True), 2, 0, "", 0, id="work for older workers, of which there are two"),
]


@pytest.mark.parametrize(("rules", "wanted", "edits", "broken", "limit"), QUICK)
def test_promises(rules: Rules, wanted: int, edits: int, broken: str, limit: int) -> None:
    explored = explored_of(rules, wanted, edits, broken, limit)
    assert len(explored.before) > 200, "a world in which little happens proves little"
    assert explored.promoted


@cache
def explored_of(rules: Rules, wanted: int, edits: int = 0, broken: str = "", limit: int = 0) -> Checked:
    explored = Checked(rules, begin(wanted, edits, broken), limit)
    explored.explore()
    return explored


@pytest.mark.parametrize("gates", ["Pause", "Abort"])
def test_each_verdict_leads_where_it_should(gates: str) -> None:
    """What the world says is what the gates find: otherwise the promises would prove nothing of them."""
    explored = explored_of(Rules(False, gates=gates), 1)
    ends: dict[str, set[str]] = {said: set() for said in SAYS}
    for world in explored.before:
        was = world.status
        judges = was.analysis == "measured" and world.waited and world.seen
        if judges and in_force(world, 1 + LAST_OF.index(was.step)):
            after = explored.one_pass(world).status
            goes_on = after.promoted or after.step > was.step
            end = "goes on" if goes_on else "aborted" if after.aborted else after.analysis
            ends[world.waited].add(end)
    waits = gates == "Pause"
    assert ends == {
        Verdict.PASSED: {"goes on"},
        Verdict.FAILED: {"Failed" if waits else "aborted"},
        Verdict.INCONCLUSIVE: {"Inconclusive" if waits else "aborted"},
        # Asked once more, and not again.
        Verdict.ERROR: {"measured", "Inconclusive" if waits else "aborted"},
        UNKNOWN: {"measured"},
    }


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        pytest.param(
            AUDITED,
            {MORE: {"Inconclusive"}, FEW: {"Inconclusive"}, REFUSED: {COUNTING, "Inconclusive"}},
            id="a Job",
        ),
        pytest.param(ASKED, {}, id="a Prometheus", marks=pytest.mark.soak),
    ],
)
def test_each_answer_about_the_totals_leads_where_it_should(rules: Rules, said: dict[str, set[str]]) -> None:
    """What the world says is what the planner hears."""
    explored = explored_of(rules, 1)
    ends: dict[str, set[str]] = {}
    for world in explored.before:
        was = world.status
        judges = was.analysis == COUNTING and world.waited == OVER and world.seen
        if judges and in_force(world, 1 + LAST_OF.index(was.step)):
            after = explored.one_pass(world).status
            end = "goes on" if after.promoted or after.step > was.step else after.analysis
            ends.setdefault(world.audit, set()).add(end)
    #: Another one, and not more than one; or it is waited for.
    again, waits = {COUNTING, "Inconclusive"}, {COUNTING}
    known = {GOOD: {"goes on"}, LOST: {"Failed"}, BROKEN: again, **said}
    assert ends == known | dict.fromkeys((ABSENT, RUNS, UNSEEN, OTHER), waits)


@pytest.mark.soak
@pytest.mark.parametrize(("rules", "wanted", "edits", "broken", "limit"), ALL_OF_IT)
def test_promises_in_the_larger_world(rules: Rules, wanted: int, edits: int, broken: str, limit: int) -> None:
    explored = Checked(rules, begin(wanted, edits, broken), limit)
    assert explored.explore() > 500, "a world in which little happens proves little"
    assert explored.promoted is not bool(broken)
