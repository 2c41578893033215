"""The planner against a small world that reacts in any order: it never hurts, and it always arrives.

The world has Deployments whose workers start, get ready, die and stop one at a time; a broker that comes and
goes; a user who edits, scales and deletes; and an operator that may crash between any two actions. A
counterexample of Hypothesis prints as the sequence of these steps.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queueworker_operator.api.names import FINALIZER
from queueworker_operator.api.parse import parse
from queueworker_operator.api.reasons import ConditionType, Stage
from queueworker_operator.api.revisions import Revision, broker_identity
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import (
    BrokerCheck,
    BrokerVerdict,
    Facts,
    QueueFacts,
    RevisionFacts,
    Unknown,
    Workers,
)
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.resources import START, body, template

IMAGES = ("v1", "v2", "v3", "broken")


@dataclasses.dataclass
class Group:
    """One Deployment: how many workers it wants, and the state of each that exists."""

    revision: Revision
    desired: int
    created: float
    starting: int = 0
    ready: int = 0
    stopping: int = 0

    @property
    def alive(self) -> int:
        return self.starting + self.ready + self.stopping

    def settle_number(self) -> None:
        """What the Deployment controller does. Of a surplus, those that are not ready go first."""
        while self.starting + self.ready < self.desired:
            self.starting += 1
        while self.starting + self.ready > self.desired:
            if self.starting:
                self.starting -= 1
            else:
                self.ready -= 1
            self.stopping += 1


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now: datetime = START
        self.body: dict[str, Any] = body(metadata__finalizers=[], spec__replicas=2)
        self.groups: dict[str, Group] = {}
        self.verdict: BrokerVerdict | None = None
        self.gone = False
        #: On the broker: revision -> reason.
        self.fences: dict[str, str] = {}
        self.births = 0
        self.events: list[str] = []

    @initialize(verdict=st.sampled_from([None, BrokerVerdict.REACHABLE]))
    def begin(self, verdict: BrokerVerdict | None) -> None:
        self.verdict = verdict

    # What the user does.

    @precondition(lambda self: not self.gone)
    @rule(image=st.sampled_from(IMAGES), prefetch=st.sampled_from([4, 100]))
    def edit(self, image: str, prefetch: int) -> None:
        self.body["spec"] |= {"template": template(image), "prefetch": prefetch}
        self.body["metadata"]["generation"] += 1

    @precondition(lambda self: not self.gone)
    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        self.body["spec"]["replicas"] = replicas
        self.body["metadata"]["generation"] += 1

    @precondition(lambda self: not self.gone and FINALIZER in self.body["metadata"]["finalizers"])
    @rule(really=st.integers(0, 5))
    def delete(self, really: int) -> None:
        if really == 0:
            self.body["metadata"]["deletionTimestamp"] = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")

    # What the world does.

    @rule(
        verdict=st.sampled_from(
            [
                None,
                BrokerVerdict.REACHABLE,
                BrokerVerdict.REACHABLE,
                BrokerVerdict.TIMEOUT,
                BrokerVerdict.AUTHENTICATION_FAILED,
            ]
        )
    )
    def broker(self, verdict: BrokerVerdict | None) -> None:
        self.verdict = verdict

    @rule(seconds=st.integers(1, 400))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @precondition(lambda self: any(g.starting for g in self.groups.values()))
    @rule(data=st.data())
    def one_gets_ready(self, data: st.DataObject) -> None:
        names = [n for n, g in self.groups.items() if g.starting and not is_broken(g)]
        if names:
            group = self.groups[data.draw(st.sampled_from(names))]
            group.starting, group.ready = group.starting - 1, group.ready + 1

    @precondition(lambda self: any(g.stopping for g in self.groups.values()))
    @rule(data=st.data())
    def one_has_stopped(self, data: st.DataObject) -> None:
        self.groups[
            data.draw(st.sampled_from([n for n, g in self.groups.items() if g.stopping]))
        ].stopping -= 1

    @precondition(lambda self: any(g.ready for g in self.groups.values()))
    @rule(data=st.data())
    def one_dies(self, data: st.DataObject) -> None:
        group = self.groups[data.draw(st.sampled_from([n for n, g in self.groups.items() if g.ready]))]
        group.ready, group.starting = group.ready - 1, group.starting + 1

    @precondition(lambda self: not self.gone)
    @rule(passes=st.integers(1, 6))
    def all_goes_well_for_a_while(self, passes: int) -> None:
        self.verdict = BrokerVerdict.REACHABLE
        for _ in range(passes):
            if not self.gone:
                self.pass_()
                self.react()

    @rule(data=st.data())
    def someone_deletes_a_deployment(self, data: st.DataObject) -> None:
        if self.groups and data.draw(st.integers(0, 9)) == 0:
            del self.groups[data.draw(st.sampled_from(sorted(self.groups)))]

    # What the operator does.

    @precondition(lambda self: not self.gone)
    @rule(crash_after=st.one_of(st.none(), st.integers(0, 6)))
    def reconcile(self, crash_after: int | None) -> None:
        self.pass_(crash_after)

    def pass_(self, crash_after: int | None = None) -> tuple[act.Action, ...]:
        resource = parse(self.body)
        assert isinstance(resource, QueueWorker)
        decided = plan(resource, self.facts(resource), self.now)
        self.check(resource, decided)
        for action in decided.actions[:crash_after]:
            self.do(action)
        return decided.actions

    def facts(self, resource: QueueWorker) -> Facts:
        rows = tuple(
            RevisionFacts(
                name=g.revision.name,
                version=g.revision.version,
                prefetch=g.revision.prefetch,
                deployment=g.revision.deployment,
                desired=g.desired,
                ready=g.ready,
                available=g.ready,
                alive=g.alive,
                created=g.created,
            )
            for g in self.groups.values()
        )
        check: BrokerCheck | Unknown = (
            Unknown("nobody looked", self.now)
            if self.verdict is None
            else BrokerCheck(
                self.verdict, "The broker.", self.now, broker_identity(resource.spec.broker), clustered=False
            )
        )
        return Facts(Workers(rows, self.now), check, self.queue(resource))

    def queue(self, resource: QueueWorker) -> QueueFacts | Unknown:
        if self.verdict is None:
            return Unknown("nobody looked", self.now)
        return QueueFacts(
            observed_at=self.now,
            identity=broker_identity(resource.spec.broker),
            has_registry=True,
            primary=True,
            staging=0,
            reserved=0,
            owned=0,
            delayed=0,
            fences=dict(self.fences),
            live={
                g.revision.name: LiveWorkers(
                    capable=g.ready, receiving=0 if g.revision.name in self.fences else g.ready
                )
                for g in self.groups.values()
            },
            quiet_since=self.now - timedelta(seconds=60),
        )

    def do(self, action: act.Action) -> None:
        match action:
            case act.EnsureFinalizer():
                self.body["metadata"]["finalizers"] = [FINALIZER]
            case act.RemoveFinalizer():
                assert not any(g.alive for g in self.groups.values()), "let go while workers are alive"
                left = [name for name in self.fences if self.verdict is BrokerVerdict.REACHABLE]
                assert not left, "a fence stays behind"
                self.gone = True
            case act.ApplyRevision(revision, replicas):
                assert FINALIZER in self.body["metadata"]["finalizers"], "a worker before the finalizer"
                self.births += 1
                group = self.groups.setdefault(revision.deployment, Group(revision, 0, self.births))
                group.desired = replicas
                group.settle_number()
            case act.ScaleRevision(_, deployment, replicas):
                self.groups[deployment].desired = replicas
                self.groups[deployment].settle_number()
            case act.RetireRevision(_, deployment):
                self.groups[deployment].desired = 0
                self.groups[deployment].settle_number()
            case act.DeleteRevision(_, deployment):
                assert self.groups[deployment].alive == 0, "deleted with workers alive"
                del self.groups[deployment]
            case act.FenceRevision(revision, reason):
                self.fences[revision] = reason
            case act.UnfenceRevision(revision):
                self.fences.pop(revision, None)
            case act.EmitEvent(reason=reason):
                self.events.append(reason)
            case act.WriteStatus(status):
                # Through the form that a cluster stores, so that the comparison is the one that counts.
                self.body["status"] = status.to_body()
            case _:
                raise AssertionError(f"unexpected {action}")

    # What must always hold.

    def check(self, resource: QueueWorker, decided: act.Plan) -> None:
        wanted = resource.spec.replicas
        before = {name: (g.desired, g.ready) for name, g in self.groups.items()}
        planned = {name: desired for name, (desired, _) in before.items()}
        creates = False
        total_before = sum(desired for desired, _ in before.values())
        for action in decided.actions:
            match action:
                case act.ApplyRevision(revision, replicas):
                    creates = creates or revision.deployment not in planned
                    planned[revision.deployment] = replicas
                case act.ScaleRevision(_, deployment, replicas):
                    planned[deployment] = replicas
                case act.RetireRevision(_, deployment):
                    planned[deployment] = 0
                case act.DeleteRevision(_, deployment):
                    del planned[deployment]
            if self.verdict is BrokerVerdict.REACHABLE:
                # One worker of each revision that leaves stays until nothing can be stranded.
                most = max(2 * wanted, total_before) + max(0, len(planned) - 2)
                assert sum(planned.values()) <= most, "more than twice of what is wanted"
        if resource.metadata.deletion_timestamp:
            return
        serving_before = sum(min(ready, desired) for desired, ready in before.values())
        serving_after = sum(min(before.get(n, (0, 0))[1], desired) for n, desired in planned.items())
        assert serving_after >= min(wanted, serving_before), "capacity was taken away"
        stable = resource.status.stable
        if creates and self.verdict is not BrokerVerdict.REACHABLE:
            created = set(planned) - set(before)
            restored = {stable.deployment} if stable else set()
            assert created == restored, "a roll began without a proven broker"
        promoted = decided.status.stable
        if promoted and (stable is None or stable.revision != promoted.revision):
            assert self.verdict is BrokerVerdict.REACHABLE, "promoted without a proven broker"
            assert set(planned) == {promoted.deployment}, "promoted beside another revision"
            assert before[promoted.deployment][1] >= wanted, "promoted before it serves"

    @invariant()
    def conditions_are_never_in_contradiction(self) -> None:
        present = {c["type"]: c for c in self.body.get("status", {}).get("conditions", [])}
        reconciling, stalled = ConditionType.RECONCILING.value, ConditionType.STALLED.value
        assert not (reconciling in present and stalled in present)
        if present.get("Ready", {}).get("status") == "True":
            assert reconciling not in present
            assert stalled not in present

    def teardown(self) -> None:
        """Whatever happened: once the broker answers and the image is sound, it arrives and stays."""
        if not self.gone:
            self.verdict = BrokerVerdict.REACHABLE
            self.edit(image="v1", prefetch=100)
            for _ in range(40):
                self.now += timedelta(seconds=2)
                done = not self.pass_() or self.gone
                self.react()
                if done:
                    break
            else:
                raise AssertionError(f"does not arrive: {self.body['status']}")
        if self.gone:
            assert not any(g.alive for g in self.groups.values())
            return
        status = self.body["status"]
        assert status["rollout"]["stage"] == Stage.IDLE
        assert status["stable"]["revision"] == status["rollout"]["target"]
        assert status["observedGeneration"] == self.body["metadata"]["generation"]
        assert [g.desired for g in self.groups.values()] == [self.body["spec"]["replicas"]]
        assert next(c["status"] for c in status["conditions"] if c["type"] == "Ready") == "True"
        assert self.pass_() == (), "an action on a settled world"

    def react(self) -> None:
        for group in self.groups.values():
            group.stopping = 0
            if not is_broken(group):
                group.ready, group.starting = group.ready + group.starting, 0


def is_broken(group: Group) -> bool:
    return bool(group.revision.template["spec"]["containers"][0]["image"] == "broken")


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=30)
