"""What one list of everything says of each QueueWorker. It serves to see that nothing is to be done: whoever
acts looks afresh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from queueworker_operator.api.names import LABEL_WORKER
from queueworker_operator.api.parse import parse
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import InvalidQueueWorker, QueueWorker
from queueworker_operator.apiserver import ApiServer, Body, deployments, pods, queueworkers
from queueworker_operator.observe.children import Child, children_of, scale_writers
from queueworker_operator.observe.neighbours import Neighbours
from queueworker_operator.observe.pods import needed
from queueworker_operator.plan.facts import FRESH

#: Facts of a list are used while they are younger than this; a bit less than what counts as Unknown.
USED_FOR = FRESH - timedelta(seconds=1)
#: Stages in which nothing goes on that a look of some seconds ago may be too old for.
CALM = frozenset({Stage.IDLE, Stage.VALIDATING})


class Name(NamedTuple):
    """Which QueueWorker."""

    namespace: str
    name: str


@dataclass(slots=True)
class Shelved:
    """One QueueWorker with its Deployments and pods, as a list had them."""

    body: Body
    deployments: tuple[Body, ...]
    pods: tuple[Body, ...]
    #: Parsed and counted once, and kept while the next lists say the same.
    _resource: QueueWorker | InvalidQueueWorker | None = None
    _made: dict[str, Revision] = field(default_factory=dict)
    _children: tuple[dict[str, Child], int] | None = None

    def calm(self) -> QueueWorker | InvalidQueueWorker | None:
        """The resource, unless it is on the way somewhere: what goes on is never judged by a list.
        Raises NotAQueueWorkerError."""
        if self._resource is None:
            self._resource = parse(self.body)
        one = self._resource
        rollout = one.status.rollout
        if one.metadata.deletion_timestamp is not None or rollout is None or rollout.stage not in CALM:
            return None
        return one

    def children(
        self,
        made_of: Callable[[QueueWorker | InvalidQueueWorker], dict[str, Revision]],
        observed_at: datetime,
    ) -> tuple[dict[str, Revision], dict[str, Child], int]:
        """What the spec asks for, by `made_of`, and what is there, both by the name of the Deployment, and
        how many live pods belong to nothing of it."""
        assert self._resource is not None, "calm() has been asked before"
        if self._children is None:
            owner, self._made = self._resource.metadata, made_of(self._resource)
            found = children_of(
                self.deployments, owner, self._made, self.pods, observed_at, self._resource.min_ready
            )
            if any(child.facts.available < child.facts.ready for child in found[0].values()):
                # Time alone changes that.
                return self._made, *found
            self._children = found
        return self._made, *self._children

    def says_the_same(self, other: Shelved) -> bool:
        """Whether both hold the very same objects."""
        return (
            self.body is other.body
            and len(self.deployments) == len(other.deployments)
            and len(self.pods) == len(other.pods)
            and all(a is b for a, b in zip(self.deployments, other.deployments, strict=True))
            and all(a is b for a, b in zip(self.pods, other.pods, strict=True))
        )


class Shelf:
    """The last list. `clock` gives aware times."""

    def __init__(self, api: ApiServer, namespaces: tuple[str, ...], clock: Callable[[], datetime]) -> None:
        self._api, self._clock, self._namespaces = api, clock, namespaces or ("",)
        self._shelved: dict[Name, Shelved] = {}
        #: Which others of the last list have workers on the same queue.
        self.neighbours = Neighbours()
        self._objects: dict[str, Body] = {}
        #: Of the list; what it says is at least as new as this.
        self._observed_at: datetime | None = None
        self._reported: dict[Name, datetime] = {}

    async def fill(self) -> set[Name]:
        """List everything anew; gives the names of all QueueWorkers. Raises ApiError, UnavailableError, and
        keeps the list before then."""
        observed_at = self._clock()
        objects: dict[str, Body] = {}
        resources: list[Body] = []
        workers: defaultdict[Name, list[Body]] = defaultdict(list)
        running: defaultdict[Name, list[Body]] = defaultdict(list)
        for namespace in self._namespaces:
            async for body in self._api.each(queueworkers(namespace)):
                resources.append(self._kept(objects, body))
            # Deployments first: a pod that is made in between counts as one too many, never as one too few.
            async for body in self._api.each(deployments(namespace), LABEL_WORKER):
                workers[_owner(body)].append(self._kept(objects, body))
            async for body in self._api.each(pods(namespace), LABEL_WORKER):
                running[_owner(body)].append(self._kept(objects, needed(body)))
        shelved: dict[Name, Shelved] = {}
        neighbours = Neighbours()
        for body in resources:
            neighbours.add(body)
            name = Name(body["metadata"]["namespace"], body["metadata"]["name"])
            one = Shelved(body, tuple(workers.get(name, ())), tuple(running.get(name, ())))
            before = self._shelved.get(name)
            shelved[name] = before if before is not None and before.says_the_same(one) else one
        self._shelved, self._objects, self._observed_at = shelved, objects, observed_at
        self.neighbours = neighbours
        self._reported = {name: at for name, at in self._reported.items() if at >= observed_at}
        return set(shelved)

    def report(self, namespace: str, name: str) -> None:
        """Something was reported or looked at since: the list says nothing of this one any more."""
        self._reported[Name(namespace, name)] = self._clock()

    def find(self, namespace: str, name: str) -> tuple[Shelved, datetime] | None:
        """What the list says, and of when that is; None when it is too old, or not the last word."""
        name_ = Name(namespace, name)
        shelved, observed_at = self._shelved.get(name_), self._observed_at
        if shelved is None or observed_at is None or name_ in self._reported:
            return None
        return (shelved, observed_at) if self._clock() - observed_at < USED_FOR else None

    def is_old(self, namespace: str, name: str) -> bool:
        """Whether the last list was the last word on a resource at rest, but for its age. Raises
        NotAQueueWorkerError."""
        name_ = Name(namespace, name)
        shelved = self._shelved.get(name_)
        return shelved is not None and name_ not in self._reported and shelved.calm() is not None

    def _kept(self, objects: dict[str, Body], body: Body) -> Body:
        """The object of the last list where this is the same, so that what was made of it is kept, too."""
        metadata = body["metadata"]
        # More than half of an object; only what autoscalers wrote says anything.
        scaled = scale_writers(metadata)
        metadata.pop("managedFields", None)
        if scaled:
            metadata["managedFields"] = scaled
        before = self._objects.get(metadata["uid"])
        if before is not None and before["metadata"]["resourceVersion"] == metadata["resourceVersion"]:
            body = before
        objects[metadata["uid"]] = body
        return body


def _owner(body: Body) -> Name:
    return Name(body["metadata"]["namespace"], body["metadata"]["labels"][LABEL_WORKER])
