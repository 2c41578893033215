"""Every state that a small world can get into, each with the story that leads to it.

A world is a tuple of small numbers. What the operator decided is in it too (`pending`), action by action:
between any two the operator may die and forget the rest. Which promises hold where is the test's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tests.operator.acting import Todo


class World(Protocol):
    @property
    def pending(self) -> tuple[Todo, ...]: ...

    def _replace(self, *, pending: tuple[Todo, ...]) -> Any: ...


W = TypeVar("W", bound=World)


class Explored(ABC, Generic[W]):
    """All states that can be reached, each with the step that led to it first. Nothing else moves during a
    pass, which may end after any of its actions. A broken promise prints as the story that led to it."""

    #: More rounds than any way takes in which all goes well.
    enough = 40

    def __init__(self, start: W) -> None:
        self.before: dict[W, tuple[str, W] | None] = {start: None}
        #: States from which all ends well, as far as that was followed.
        self.arrives: set[W] = set()

    def explore(self) -> int:
        """How many states there are."""
        todo = deque(self.before)
        while todo:
            world = todo.popleft()
            self.arrive(world)
            for said, after in self.steps(world):
                if after not in self.before:
                    self.before[after] = (said, world)
                    todo.append(after)
        return len(self.before)

    def steps(self, world: W) -> Iterator[tuple[str, W]]:
        yield from self.happens(world)
        looked = self.looks(world)
        if looked != world:
            yield "the operator looks", looked
        elif decided := self.decide(world):
            self.check_decision(world, decided)
            yield from self.passes(world, world._replace(pending=decided))

    def passes(self, began: W, world: W) -> Iterator[tuple[str, W]]:
        """Every beginning of the pass, each of which may be all that was done."""
        worlds = [world]
        while worlds and worlds[0].pending:
            self.check_action(worlds[0], began)
            steps = [step for one in worlds for step in self.do(one)]
            worlds = [after for _, after in steps]
            for said, after in steps:
                yield f"a pass up to: {said}", after._replace(pending=())

    def arrive(self, world: W) -> None:
        """Follow the way on which all goes well to its end, unless that was done."""
        path: list[W] = []
        now = world
        for _ in range(self.enough):
            if now in self.arrives or self.is_over(now):
                self.arrives.update(path)
                return
            path.append(now)
            after = self.all_goes_well(now)
            if after == now:
                break
            now = after
        self.check_end(world, now)
        self.arrives.update(path)

    def one_pass(self, world: W) -> W:
        """What the operator makes of it when nothing else happens."""
        world = world._replace(pending=self.decide(world))
        while world.pending:
            *_, (_, world) = self.do(world)
        return world

    def promise(self, kept: bool, world: W, text: str) -> None:
        assert kept, f"{text}\n\n{self.story(world)}"

    def story(self, world: W) -> str:
        last = f"still to do: {list(world.pending)}" if world.pending else f"decides {self.decide(world)}"
        told = [f"  and now:  {self.look(world)}; {last}"]
        while (step := self.before[world]) is not None:
            said, world = step
            told.append(f"- {said}")
        return "\n".join([f"  at first: {self.look(world)}", *reversed(told)])

    # -- the world -----------------------------------------------------------------------------------

    @abstractmethod
    def happens(self, world: W) -> Iterator[tuple[str, W]]:
        """What may happen without the operator."""

    @abstractmethod
    def decide(self, world: W) -> tuple[Todo, ...]:
        """What the planner wants done."""

    @abstractmethod
    def do(self, world: W) -> Iterator[tuple[str, W]]:
        """The operator's next action. More than one world where its effect is not certain."""

    @abstractmethod
    def all_goes_well(self, world: W) -> W:
        """One round: the broker answers, workers start, stop and settle, and the operator does one pass."""

    @abstractmethod
    def look(self, world: W) -> str:
        """The state in a line."""

    def looks(self, world: W) -> W:
        """What has become true, for the promises alone, once the operator looks at this."""
        return world

    def is_over(self, world: W) -> bool:
        return False

    # -- promises ------------------------------------------------------------------------------------

    @abstractmethod
    def check_decision(self, world: W, decided: Sequence[Todo]) -> None: ...

    @abstractmethod
    def check_end(self, world: W, end: W) -> None:
        """`end` is where it gets to from `world` when all goes well."""

    def check_action(self, world: W, began: W) -> None:
        """What was proven when the pass began must still be true when it is acted on."""
