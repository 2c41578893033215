"""Every state that a canary of two arms can get into, and the promises that hold in each.

S1 never retire the last consumer that could recover what is held before nothing is.
S2 never promote before both arms ran as they should, and never on what could not be seen.
S3 never two stable revisions.
S5 whatever was begun ends in Idle once the broker answers.
S6 a queue is never left without a receiver by the operator's doing.
And never more workers than are wanted, a canary, and a canary that is to leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from queueworker_operator.api.reasons import Stage
from tests.operator.canary_world import (
    NAMES,
    Happening,
    Rules,
    Status,
    World,
    decide,
    do,
    in_force,
    what_may_happen,
)
from tests.operator.small_world import NONE, Group

#: More rounds than any way takes in which all goes well.
ENOUGH = 40


def begin(wanted: int, edits: int, broken: str = "") -> World:
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


class Explored:
    """All states that can be reached, each with the step that led to it first. A pass may end after any of
    its actions."""

    def __init__(self, rules: Rules, start: World, limit: int) -> None:
        self.rules, self.limit = rules, limit
        self.before: dict[World, tuple[str, World] | None] = {start: None}
        self.arrives: set[World] = set()
        self.promoted = False

    def explore(self) -> int:
        todo = deque(self.before)
        while todo:
            world = todo.popleft()
            self.arrive(world)
            for said, after in self.steps(world):
                if after not in self.before:
                    self.before[after] = (said, world)
                    todo.append(after)
        return len(self.before)

    def steps(self, world: World) -> Iterator[Happening]:
        yield from what_may_happen(self.rules, world, self.limit)
        if decided := decide(self.rules, world):
            world = proved(world)
            self.check(world, decided)
            worlds = [world._replace(pending=decided)]
            while worlds and worlds[0].pending:
                steps = [step for one in worlds for step in do(one)]
                worlds = [after for _, after in steps]
                for said, after in steps:
                    yield f"a pass up to: {said}", after._replace(pending=())

    # -- promises ----------------------------------------------------------------------------------

    def check(self, world: World, decided: tuple[tuple[object, ...], ...]) -> None:
        receivers, after = self.rules.receivers(world), world
        # A status that is lost when t already serves alone: there is nothing left to compare it with.
        nobody_else = not world.status.stable and not any(g.desired for g in world.groups[:2])
        all_proven = all(world.proven) or nobody_else
        for action in decided:
            match action:
                case ("scale", int(index), 0) if self.rules.capable(index) and world.groups[index].ready:
                    others = self.rules.successors(world, index)
                    proven = world.seen and world.quiet and not sum(world.owned) and world.fences[index]
                    self.promise(bool(others or proven), world, "S1: the last capable consumer is retired")
                case ("scale", 2, int(number)) if number > 1 and world.groups[2].desired < number:
                    self.promise(
                        all_proven and world.seen, world, "S2: it takes over before the steps are done"
                    )
                case ("status", Status(stable="t")) if world.status.stable != "t":
                    self.promoted = True
                    self.promise(world.seen, world, "S2: promoted without a broker")
                    self.promise(all_proven, world, "S2: promoted before its steps are done")
                    others = [g for g in world.groups[:2] if g.desired or g.ready or g.stopping]
                    self.promise(not others, world, "S3: promoted beside another revision")
            if world.target == "t" and action[:2] == ("scale", 0) and action[2] == 0:
                self.promise(all_proven, world, "S2: a is retired before the steps are done")
            if world.seen:
                *_, (_, after) = do(after._replace(pending=(action,)))
                left = self.rules.receivers(after)
                self.promise(bool(left or not receivers), world, f"S6: nobody receives after {action}")
        total = sum(group.desired for group in after.groups)
        before = sum(group.desired for group in world.groups)
        most = max(2 * world.wanted, world.wanted + 2)
        self.promise(total <= max(most, before), world, f"there are {total} workers")

    def arrive(self, world: World) -> None:
        """S5, and nothing is left where a Legacy worker cannot read it."""
        path = []
        now = world
        for _ in range(ENOUGH):
            if now in self.arrives:
                self.arrives.update(path)
                return
            path.append(now)
            after = self.all_goes_well(now)
            if after == now:
                break
            now = after
        status = now.status
        serves = "a" if now.target == "a" or status.aborted else "t"
        if serves == "t" and now.broken:
            return  # to be taken back; nothing else is promised
        others = [g for name, g in zip(NAMES, now.groups, strict=True) if name != serves and g.exists]
        done = status.stage is Stage.IDLE and status.stable == serves and not others
        self.promise(done, world, f"S5: it ends in {now}")
        stranded = sum(now.owned) and not self.rules.live_capable(now)
        self.promise(not stranded, world, f"S5: work is left where nobody reads it: {now}")
        self.arrives.update(path)

    def all_goes_well(self, world: World) -> World:
        """One round: the broker answers, time goes by, workers start, stop and settle, the operator looks."""
        groups = [
            g._replace(ready=0 if name == world.broken else g.desired, stopping=0) if g.exists else g
            for name, g in zip(NAMES, world.groups, strict=True)
        ]
        world = world._replace(seen=True, waited=True, groups=(groups[0], groups[1], groups[2]))
        if self.rules.live_capable(world):
            world = world._replace(owned=(0, 0, 0))
        world = proved(world._replace(quiet=not sum(world.owned)))
        world = world._replace(pending=decide(self.rules, world))
        while world.pending:
            *_, (_, world) = do(world)
        return world

    def promise(self, kept: bool, world: World, text: str) -> None:
        assert kept, f"{text}\n\n{self.story(world)}"

    def story(self, world: World) -> str:
        known = world._replace(pending=())
        if known not in self.before:  # what the operator does not see was brought up to date
            known = next(one for one in self.before if one._replace(proven=known.proven) == known)
        steps = [f"  and now:  {_look(world)}, decides {decide(self.rules, known)}"]
        while (step := self.before[known]) is not None:
            said, known = step
            steps.append(f"- {said}")
        return "\n".join([f"  at first: {_look(known)}", *reversed(steps)])


def proved(world: World) -> World:
    """An operator that looks now sees an arm that runs as it should, after its time."""
    if not (world.seen and world.waited and world.target == "t"):
        return world
    p, t = (known or in_force(world, arm) for arm, known in enumerate(world.proven, 1))
    return world._replace(proven=(p, t))


def _look(world: World) -> str:
    groups = ", ".join(
        f"{name} {group.ready} of {group.desired} ready"
        + (f" and {group.stopping} stopping" if group.stopping else "")
        for name, group in zip(NAMES, world.groups, strict=True)
        if group.exists
    )
    fences = [name for name, fenced in zip(NAMES, world.fences, strict=True) if fenced] or "none"
    return (
        f"{world.target} is wanted; {groups}; owned {world.owned}; fences: {fences}; {world.status}; proven "
        f"{world.proven}"
    )


QUICK = [
    pytest.param(1, 1, False, "", 0, id="one worker, one thing that a person does"),
    pytest.param(1, 0, True, "", 1, id="one worker beside Legacy"),
    pytest.param(2, 0, False, "", 0, id="two workers"),
]
ALL_OF_IT = [
    pytest.param(2, 1, False, "", 0, id="two workers"),
    pytest.param(2, 1, True, "", 0, id="two workers beside Legacy"),
    pytest.param(1, 1, False, "", 1, id="one message"),
    pytest.param(1, 1, True, "", 1, id="one message beside Legacy"),
    pytest.param(1, 1, False, "p", 1, id="the first arm cannot start"),
    pytest.param(1, 1, True, "t", 1, id="the second arm cannot start beside Legacy"),
]


@pytest.mark.parametrize(("wanted", "edits", "legacy", "broken", "limit"), QUICK)
def test_promises(wanted: int, edits: int, legacy: bool, broken: str, limit: int) -> None:
    explored = Explored(Rules(legacy), begin(wanted, edits, broken), limit)
    assert explored.explore() > 200, "a world in which little happens proves little"
    assert explored.promoted


@pytest.mark.soak
@pytest.mark.parametrize(("wanted", "edits", "legacy", "broken", "limit"), ALL_OF_IT)
def test_promises_in_the_larger_world(wanted: int, edits: int, legacy: bool, broken: str, limit: int) -> None:
    explored = Explored(Rules(legacy), begin(wanted, edits, broken), limit)
    assert explored.explore() > 500, "a world in which little happens proves little"
    assert explored.promoted is not bool(broken)
