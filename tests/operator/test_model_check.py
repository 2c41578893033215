"""Every state that a small world can get into, and the promises that hold in each (S1 to S6).

S1 never retire the last consumer that could recover what is reserved before nothing is.
S2 never promote on what could not be seen.
S3 never two stable revisions.
S4 older workers stay, and no other starts, while work exists that only they take.
S5 whatever was begun ends in Idle once the broker answers.
S6 a queue is never left without a receiver by the operator's doing.

A broken promise prints as the story that led to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from queueworker_operator.api.reasons import Stage
from tests.operator.acting import NONE, Group, Todo, look_at, priority_is_gone
from tests.operator.exploring import Explored
from tests.operator.small_world import NAMES, Rules, Status, Step, World, decide, do, happenings

#: Counted in states and not in seconds, so a busy machine has its time: the largest world takes minutes.
pytestmark = pytest.mark.timeout(3600)


def begin(wanted: int, edits: int, of: str = "b") -> World:
    """b is asked for where a serves; or a where b serves, which took over from it."""
    if of == "a":
        status = Status("b", "a", Stage.IDLE, "b")
        groups = (NONE, Group(True, wanted, wanted))
        return begin(wanted, edits)._replace(target="a", groups=groups, status=status)
    return World(
        target="b",
        wanted=wanted,
        groups=(Group(True, wanted, wanted), NONE),
        reserved=0,
        owned=(0, 0),
        staged=0,
        fences=(False, False),
        ghost=False,
        seen=True,
        quiet=False,
        status=Status("a", "", Stage.IDLE, "a"),
        edits=edits,
    )


class Checked(Explored[World]):
    """The promises S1 to S6 in each state."""

    enough = 20

    def __init__(self, rules: Rules, start: World, limit: int, whole: bool) -> None:
        """`whole`: nothing else moves during a pass, which may still end after any of its actions."""
        super().__init__(start)
        self.rules, self.limit, self.whole = rules, limit, whole

    def steps(self, world: World) -> Iterator[Step]:
        if self.whole:
            yield from super().steps(world)
            return
        yield from self.happens(world)
        if world.pending:
            self.check_action(world, world)
            yield from do(world)
            yield "the operator dies and is started again", world._replace(pending=())
        elif decided := self.decide(world):
            self.check_decision(world, decided)
            yield "the operator looks and decides", world._replace(pending=decided)

    def happens(self, world: World) -> Iterator[Step]:
        return happenings(self.rules, world, self.limit)

    def decide(self, world: World) -> tuple[Todo, ...]:
        return decide(self.rules, world)

    def do(self, world: World) -> Iterator[Step]:
        return do(world)

    # -- promises ----------------------------------------------------------------------------------

    def check_decision(self, world: World, decided: Sequence[Todo]) -> None:
        receivers, after = self.rules.receivers(world), world
        for action in decided:
            match action:
                case ("scale", int(index), 0) if self.rules.capable(index) and world.groups[index].ready:
                    others = self.rules.successors(world, index) or self.is_coming(world, 1 - index)
                    proven = world.seen and world.quiet and not world.registry and world.fences[index]
                    proven = proven or (self.rules.nats and world.fences[index])  # nothing to recover from
                    self.promise(bool(others or proven), world, "S1: the last capable consumer is retired")
                case ("status", Status(stable=stable)) if stable != world.status.stable:
                    self.promise(world.seen, world, "S2: promoted without a broker")
                    other = world.groups[1 - NAMES.index(stable)]
                    alone = not (other.desired or other.ready or other.stopping)
                    self.promise(alone, world, "S3: promoted beside another revision")
                case ("unfence", 1) if world.life == "ending":
                    self.promise(not world.ghost, world, "S1: a lost worker is let loose again")
                case ("let go",):
                    self.check_letting_go(world)
            self.check_priority(world, action)
            if world.seen and world.life != "ending":
                *_, (_, after) = do(after._replace(pending=(action,)))
                left = self.rules.receivers(after)
                self.promise(
                    bool(left or not receivers or not world.wanted),
                    world,
                    f"S6: nobody receives after {action}",
                )

    def is_coming(self, world: World, index: int) -> bool:
        """One that the list still has for alive is started again."""
        return world.listed[index] and self.rules.capable(index) and world.groups[index].desired > 0

    def check_letting_go(self, world: World) -> None:
        alive = any(group.desired or group.ready or group.stopping for group in world.groups)
        self.promise(not alive, world, "S1: let go while workers are alive")
        others = world.ghost and not world.fences[1]
        proven = bool(others or (world.quiet and not world.registry))
        proven = proven or not any(self.rules.capable(i) for i in (0, 1) if self.was_there(world, i))
        self.promise(proven or not world.seen, world, "S1: let go while work may be stranded")

    def was_there(self, world: World, index: int) -> bool:
        return world.groups[index].exists or world.target == NAMES[index]

    def check_priority(self, world: World, action: Todo) -> None:
        if not self.rules.nats or world.target != "b" or world.life == "ending":
            return
        older, newer = world.groups
        gone = priority_is_gone(world)
        match action:
            case ("scale", 0, int(number)) if number < older.desired:
                self.promise(gone, world, "S4: an older worker is stopped that has work of its own")
            case ("scale", 1, int(number)) if number and not (newer.desired or newer.stopping):
                first = older.exists and world.status.stable == "a"
                self.promise(gone or not first, world, "S4: the next revision starts too soon")

    def check_action(self, world: World, began: World) -> None:
        """What was proven must still be true when it is acted on."""
        match world.pending[0]:
            case ("scale", int(index), 0) if self.rules.capable(index) and world.groups[index].ready:
                # One that died meanwhile is started again.
                wanted = self.rules.capable(1 - index) and world.groups[1 - index].desired
                others = wanted or self.rules.successors(world, index)
                held = world.reserved + sum(world.owned)
                self.promise(bool(others or not held), began, "S1: work is stranded by a retirement")

    def is_over(self, world: World) -> bool:
        return world.life == "gone"

    def check_end(self, world: World, end: World) -> None:
        """S5, and nothing is left where a Legacy worker cannot read it."""
        self.promise(end.life != "ending", world, f"S5: it is never let go: {end}")
        if end.target == "b" and end.wanted and end.b == "broken":
            return  # to be taken back; nothing else is promised
        status, other = end.status, end.groups[1 - NAMES.index(end.target)]
        done = status.stage is Stage.IDLE and status.stable == end.target and not other.exists
        self.promise(done, world, f"S5: it ends in {end}")
        stranded = end.registry and not self.rules.live_capable(end)
        self.promise(not stranded, world, f"S5: work is left where nobody reads it: {end}")

    def all_goes_well(self, world: World) -> World:
        a, b = (g._replace(ready=g.desired, stopping=0) if g.exists else g for g in world.groups)
        groups = (a, b._replace(ready=0) if world.b == "broken" else b)
        world = world._replace(seen=True, pending=(), groups=groups)
        if self.rules.live_capable(world):
            world = world._replace(reserved=0, owned=(0, 0))
            if any(self.rules.capable(i) and groups[i].ready and not world.fences[i] for i in (0, 1)):
                world = world._replace(staged=0)
        if groups[0].ready:
            world = world._replace(priority=0)
        world = world._replace(quiet=not world.registry, drained=not world.priority, young=False)
        world = world._replace(listed=(False, False))
        return self.one_pass(world)

    def look(self, world: World) -> str:
        registry = f"reserved {world.reserved}, owned {world.owned}, staged {world.staged}"
        status = f"{world.status.stage}, stable {world.status.stable}"
        return f"{look_at(NAMES, world)}; {registry}; {status}"


QUICK = [
    pytest.param("a", 1, 1, 0, False, False, "sound", id="back, anything between two actions"),
    pytest.param("a", 1, 1, 0, False, True, "sound", id="back to Legacy, anything between two actions"),
    pytest.param("b", 1, 1, 0, False, True, "sound", id="forward from Legacy, anything between two actions"),
    pytest.param("b", 1, 1, 0, True, False, "sound", id="forward"),
    pytest.param("a", 1, 2, 0, True, True, "sound", id="back to Legacy, two in the registry"),
    pytest.param("a", 2, 1, 0, True, True, "sound", id="back to Legacy, two workers"),
    pytest.param("a", 1, 1, 0, True, False, "flawed", id="back from an image that breaks"),
    pytest.param("a", 1, 1, 0, True, True, "flawed", id="back to Legacy from an image that breaks"),
]
ALL_OF_IT = [
    pytest.param(of, wanted, 2, 1, wanted > 1, legacy, "flawed", id=f"{of}-{wanted}-{legacy}")
    for of in NAMES
    for wanted in (1, 2)
    for legacy in (False, True)
]


@pytest.mark.parametrize(
    ("of", "wanted", "edits", "whole"),
    [
        pytest.param("b", 1, 0, False, id="forward, anything between two actions"),
        pytest.param("b", 2, 0, True, id="forward, two workers", marks=pytest.mark.soak),
        pytest.param("b", 1, 1, True, id="forward, and somebody changes the spec", marks=pytest.mark.soak),
        pytest.param("a", 1, 0, True, id="back"),
    ],
)
def test_promises_where_only_older_workers_take_some_of_the_work(
    of: str, wanted: int, edits: int, whole: bool
) -> None:
    explored = Checked(Rules(legacy=True, nats=True), begin(wanted, edits, of), 0, whole)
    assert explored.explore() > 200, "a world in which little happens proves little"


@pytest.mark.parametrize(("of", "wanted", "limit", "edits", "whole", "legacy", "b"), QUICK)
def test_promises(of: str, wanted: int, limit: int, edits: int, whole: bool, legacy: bool, b: str) -> None:
    explored = Checked(Rules(legacy), begin(wanted, edits, of)._replace(b=b), limit, whole)
    assert explored.explore() > 200, "a world in which little happens proves little"


ENDS = [
    pytest.param("b", False, "sound", id="in a change"),
    pytest.param("a", True, "sound", id="on the way back to Legacy"),
    pytest.param("b", True, "sound", id="in a change from Legacy"),
    pytest.param(
        "a", False, "flawed", id="on the way back from an image that breaks", marks=pytest.mark.soak
    ),
]


@pytest.mark.parametrize(("of", "legacy", "b"), ENDS)
def test_promises_of_a_deletion(of: str, legacy: bool, b: str) -> None:
    """It may come at any moment, between two passes or in the middle of one."""
    start = begin(1, 0, of)._replace(b=b, life="may end")
    explored = Checked(Rules(legacy), start, 1, whole=True)
    assert explored.explore() > 200, "a world in which little happens proves little"
    assert any(world.life == "gone" for world in explored.before)


LISTED = [
    pytest.param("a", False, 1, "stays", id="on the way back, or to no worker", marks=pytest.mark.soak),
    pytest.param("b", False, 1, "stays", id="in a change, or to no worker"),
    pytest.param("a", True, 0, "stays", id="on the way back to Legacy"),
    pytest.param("b", False, 0, "may end", id="in a change, and the resource is deleted"),
]


@pytest.mark.parametrize(("of", "legacy", "edits", "life"), LISTED)
def test_promises_while_killed_workers_are_still_listed(of: str, legacy: bool, edits: int, life: str) -> None:
    """Who was killed recovers nothing, whatever the broker's list says of it until it falls silent."""
    start = begin(1, edits, of)._replace(life=life)
    explored = Checked(Rules(legacy, lists=True), start, 1, whole=True)
    assert explored.explore() > 200, "a world in which little happens proves little"
    assert any(any(world.listed) for world in explored.before)


@pytest.mark.soak
@pytest.mark.parametrize(("of", "wanted", "limit", "edits", "whole", "legacy", "b"), ALL_OF_IT)
def test_promises_in_the_larger_world(
    of: str, wanted: int, limit: int, edits: int, whole: bool, legacy: bool, b: str
) -> None:
    explored = Checked(Rules(legacy), begin(wanted, edits, of)._replace(b=b), limit, whole)
    assert explored.explore() > 10_000, "a world in which little happens proves little"
