"""A change in steps: each arm a Deployment of its own, beside the stable one."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.appimages import DEMO_WORKER_IMAGE
from e2e.fixtures import wait_until
from queueworker_operator.api.names import LABEL_PREFETCH, LABEL_VERSION
from tests.cluster.operators import Installed, OperatorProcess
from tests.cluster.story import LONG, NAME, SOON, Body, Story, event_payloads, queueworker, with_version

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]

ONE: Body = {"setCanaryScale": {"replicas": 1}}
PAUSE: Body = {"pause": {}}


def arm(prefetch: int) -> Body:
    return {"setPrefetch": prefetch}


def in_steps(url: str, *steps: Body, **spec: Any) -> Body:
    """The first step gives the canary one of two workers."""
    return queueworker(url, rollout={"strategy": "Canary", "steps": [ONE, *steps]}, **spec)


def asks(resource: Body, id_: str, action: str) -> Body:
    return resource | {"spec": resource["spec"] | {"request": {"id": id_, "action": action}}}


def then_at(story: Story, stage: str, step: str) -> None:
    def there() -> bool:
        rollout = story.resource().get("status", {}).get("rollout", {})
        return (rollout.get("stage"), rollout.get("step")) == (stage, step)

    wait_until(there, f"stage {stage}, step {step}", LONG)


def of_arm(story: Story, prefetch: int) -> set[str]:
    """The pods of an arm, by name."""
    found = [pod["metadata"] for pod in story.pods()]
    return {one["name"] for one in found if one["labels"][LABEL_PREFETCH] == str(prefetch)}


def numbers(story: Story) -> dict[str, int]:
    """Workers that are wanted of each revision, by its role and prefetch."""
    wanted = {d["metadata"]["name"]: d["spec"]["replicas"] for d in story.deployments()}
    rows = story.resource()["status"]["revisions"]
    return {f"{row['role']} p{row['prefetch']}": wanted[row["deployment"]] for row in rows}


@pytest.mark.parametrize(
    "killed", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["seen through", "killed"]
)
def test_the_arms_one_after_the_other_and_then_the_promotion(
    installed: Installed, story: Story, killed: bool
) -> None:
    steps = (arm(4), PAUSE, arm(20), PAUSE)
    # Ready for a while before it counts, so that each step can be seen.
    first = in_steps(story.given_broker(), *steps, minReadySeconds=3)
    stable = story.given_ready(first)
    second = with_version(first, "v2")

    def arms_that_work() -> int:
        return len(set(story.reading().ledger) - {stable})

    with story.publishing(event_payloads(400), pause=0.2):
        story.apply(second)
        then_at(story, "Paused", "3/5")
        assert numbers(story) == {"Stable p20": 1, "Canary p4": 1}
        wait_until(lambda: arms_that_work() == 1, "the first arm takes work", SOON)
        assert story.condition("Ready")["reason"] == "PauseStep"
        story.apply(asks(second, "1", "SkipStep"))
        if killed:
            wait_until(lambda: len(story.deployments()) == 3, "the second arm is beside the first", SOON)
            installed.kill()
        then_at(story, "Paused", "5/5")
        assert numbers(story) == {"Stable p20": 1, "Canary p20": 1}
        wait_until(lambda: arms_that_work() == 2, "the second arm takes work", SOON)
        story.apply(asks(second, "2", "Promote"))
        if killed:
            wait_until(lambda: story.stage() == "Promoting", "the promotion has begun", SOON)
            installed.kill()
        new = story.then_serves(second)

    assert new != stable
    assert len(story.deployments()) == 1
    reading = story.then_committed(400)
    assert set(story.handled().values()) == {1}
    arms = [revision for revision in reading.ledger if revision.startswith(new.rpartition("-p")[0])]
    assert len(arms) == 2, "each arm has books of its own"
    told = story.event_reasons()
    assert {"RolloutStarted", "StepCompleted", "RequestHandled", "Promoted"} <= set(told)


#: The first process of a container cannot be killed from within it: the worker is made its child.
_AS_A_CHILD = """trap 'kill -TERM $worker' TERM; queueworker "$@" & worker=$!; wait $worker; wait $worker"""
#: Run in the container of a worker: ends one process of its supervisor.
_END_ONE = """
import os, signal
for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}:
    with open(f"/proc/{pid}/cmdline") as line:
        if "worker_runtime.process" in line.read():
            os.kill(pid, signal.SIGKILL)
"""


def test_a_pause_is_told_of_every_death_of_the_canary(installed: Installed, story: Story) -> None:
    first = in_steps(story.given_broker(), {"pause": {"durationSeconds": 3600}})
    stable = story.given_ready(first)
    second = with_version(first, "v2")
    second["spec"]["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", _AS_A_CHILD, "sh"]
    story.apply(second)
    then_at(story, "Paused", "2/2")

    def deaths() -> int:
        rows = story.resource()["status"]["revisions"]
        return sum(row["restarts"] for row in rows if row["name"] != stable)

    (pod,) = [p["metadata"]["name"] for p in story.pods() if not _is_of(p, stable)]
    inside = ("exec", pod, "-c", "worker", "--")
    story.kubectl(*inside, "sh", "-c", "kill -9 -1", check=False)
    wait_until(lambda: deaths() == 1, "the end of the container is counted", LONG)
    then_at(story, "Paused", "2/2")
    message = story.condition("Ready")["message"]
    assert "3600 s without a restart of the canary" in message
    assert f"pod {pod}: container worker ended with exit code 137" in message

    story.kubectl(*inside, "python3", "-c", _END_ONE)
    wait_until(lambda: deaths() == 2, "the end of one process is counted, too", LONG)
    wait_until(
        lambda: f"worker {pod}: a process of it ended" in story.condition("Ready")["message"],
        "the last death is told",
        LONG,
    )
    assert story.resource()["status"]["rollout"]["step"] == "2/2"


def _is_of(pod: Body, revision: str) -> bool:
    labels = pod["metadata"]["labels"]
    return revision == f"{labels[LABEL_VERSION]}-p{labels[LABEL_PREFETCH]}"


def test_an_abort_in_an_arm_leads_back_to_the_stable_revision(installed: Installed, story: Story) -> None:
    first = in_steps(story.given_broker(), arm(4), PAUSE, arm(20), PAUSE)
    stable = story.given_ready(first)
    second = with_version(first, "v2")
    story.apply(second)
    then_at(story, "Paused", "3/5")
    with story.publishing(event_payloads(100), pause=0.1):
        story.apply(asks(second, "1", "Abort"))
        story.then_condition("Ready", "False", "RolloutAborted", LONG)
    assert [d["spec"]["replicas"] for d in story.deployments()] == [2]
    assert story.resource()["status"]["stable"]["revision"] == stable
    story.then_committed(100)
    assert set(story.handled().values()) == {1}


def test_a_canary_survives_the_operators_death_and_other_steps(
    operator_process: OperatorProcess, story: Story
) -> None:
    # Ready for a while before it counts, so that one arm can be seen beside the other.
    first = in_steps(story.given_broker(), arm(4), PAUSE, arm(20), PAUSE, minReadySeconds=3)
    stable = story.given_ready(first)
    second = with_version(first, "v2")
    story.apply(second)
    wait_until(lambda: len(story.deployments()) == 2, "the first arm is created", SOON)
    operator_process.kill()
    operator_process.start()
    then_at(story, "Paused", "3/5")
    story.apply(asks(second, "1", "SkipStep"))
    wait_until(lambda: len(story.deployments()) == 3, "the second arm is created beside the first", SOON)
    operator_process.kill()
    operator_process.start()
    then_at(story, "Paused", "5/5")
    assert numbers(story) == {"Stable p20": 1, "Canary p20": 1}

    story.apply(with_version(in_steps(story.url, arm(20), PAUSE, minReadySeconds=3), "v2"))
    then_at(story, "Paused", "3/3")
    status = story.resource()["status"]
    assert (status["rollout"]["attempt"], status["stable"]["revision"]) == (2, stable)
    shown = story.kubectl("get", "qw", NAME).stdout
    assert "Paused" in shown
    assert "3/3" in shown


#: Counts when it may, and says that it was there.
COUNTS_LATER = """
import os, time, redis
from examples.usage import audit
broker = redis.Redis.from_url(os.environ["QUEUEWORKER_BROKER_URL"])
broker.rpush("audit:begun", os.environ["HOSTNAME"])
while not broker.exists("audit:go"):
    time.sleep(0.2)
audit.main()
"""


def test_a_measured_canary_that_loses_a_pod_on_purpose_comes_out_even(
    installed: Installed, story: Story
) -> None:
    """By the books of the broker, and by the totals that a Job counts, while the operator is killed."""
    few: list[Body] = [
        {"type": type_, "minSamples": 5} for type_ in ("CPUEfficiency", "Latency", "UsageAccounting")
    ]
    counts: Body = {
        "name": "audit",
        "image": DEMO_WORKER_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", COUNTS_LATER],
    }
    few[-1]["job"] = {"template": {"spec": {"containers": [counts]}}, "timeoutSeconds": 120}
    steps = (arm(4), {"analysis": {"durationSeconds": 20, "forceFailure": True}}, arm(20), PAUSE)
    rollout = {
        "strategy": "Canary",
        "steps": [ONE, *steps],
        "gates": [{"type": "QueueProgress", "minSamples": 5}, *few],
    }
    # The machine is small: how long things take says little.
    for gate in few[:2]:
        gate["maxPercentOfStable"] = 10_000
    first = queueworker(story.given_broker(), rollout=rollout)
    story.given_ready(first)
    with story.publishing(event_payloads(3000), pause=0.2):
        story.apply(with_version(first, "v2"))
        seen: set[str] = set()

        def counted() -> bool:
            seen.update(of_arm(story, 4))
            return bool(story.store.llen("audit:begun"))

        wait_until(counted, "somebody counts the totals", LONG)
        installed.kubectl("delete", "pod", *installed.pods(), "--grace-period=0", "--force")
        story.store.set("audit:go", 1)
        then_at(story, "Paused", "5/5")
    assert story.store.llen("audit:begun") == 1, "the next operator finds who counts already"
    assert len(seen) >= 2, "another pod takes the place of the one that was killed"

    found = story.resource()["status"]["gates"]
    assert {(one["type"], one["verdict"]) for one in found} == {
        (type_, "Passed") for type_ in ("QueueProgress", "CPUEfficiency", "Latency", "UsageAccounting")
    }
    (usage,) = [one["message"] for one in found if one["type"] == "UsageAccounting"]
    assert "0 lost" in usage
    assert story.condition("GatesPassed")["reason"] == "AllPassed"
    assert "WorkerKilled" in story.event_reasons()
    assert story.kubectl("get", "jobs", "-o", "name").stdout == "", "whoever counted is removed"
    story.then_committed(3000)


def test_a_job_that_the_api_server_refuses_is_told_before_anything_is_measured(
    installed: Installed, story: Story
) -> None:
    wrong = {"name": "audit", "image": "none", "volumeMounts": [{"name": "nowhere", "mountPath": "/a"}]}
    gate = {"type": "UsageAccounting", "job": {"template": {"spec": {"containers": [wrong]}}}}
    rollout = {"strategy": "Canary", "steps": [ONE, {"analysis": {"durationSeconds": 600}}], "gates": [gate]}
    first = queueworker(story.given_broker(), rollout=rollout)
    story.given_ready(first)
    story.apply(with_version(first, "v2"))
    message = story.then_condition("Ready", "False", "GateInconclusive", LONG)
    assert "nowhere" in message
    assert "volumeMounts" in message
