"""What cannot work is said in a condition, with the way out, and workers that run are left alone."""

from __future__ import annotations

import copy

import pytest

from e2e.fixtures import wait_until
from tests.cluster.operators import Installed
from tests.cluster.story import LONG, Body, Story, event_payloads, queueworker, with_version

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def test_a_secret_that_does_not_fit_is_named_until_it_does(installed: Installed, story: Story) -> None:
    url = story.given_broker()
    resource = queueworker(broker={"redis": {"secretRef": {"name": "usage-redis"}}})
    story.apply(resource)
    message = story.then_condition("BrokerReachable", "False", "SecretNotFound")
    assert f"{story.kubectl.namespace}/usage-redis does not exist" in message
    assert not story.deployments()

    story.given_secret("usage-redis", address=url)
    assert "'url' (its keys: address)" in _changed(story, message)
    story.given_secret("usage-redis", url="")
    assert "is empty" in _changed(story, "no key")
    story.given_secret("usage-redis", url=url)
    story.then_serves(resource)
    container = story.deployments()[0]["spec"]["template"]["spec"]["containers"][0]
    variable = next(e for e in container["env"] if e["name"] == "QUEUEWORKER_BROKER_URL")
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "usage-redis", "key": "url"}


def test_a_password_that_is_wrong(installed: Installed, story: Story) -> None:
    url = story.given_broker(password="right")
    story.given_secret("usage-redis", url=url.replace(":right@", ":wrong@"))
    resource = queueworker(broker={"redis": {"secretRef": {"name": "usage-redis"}}}, replicas=1)
    story.apply(resource)
    message = story.then_condition("BrokerReachable", "False", "AuthenticationFailed")
    assert "wrong" not in message.split("WRONGPASS")[0].split("@")[0], "a password is never shown"
    assert not story.deployments()
    story.given_secret("usage-redis", url=url)
    story.then_serves(resource)


@pytest.fixture
def serving(installed: Installed, story: Story) -> Body:
    """A resource whose first version serves."""
    resource = queueworker(story.given_broker(), replicas=1)
    story.given_ready(resource)
    return resource


def test_a_broker_that_cannot_be_reached(serving: Body, story: Story) -> None:
    changed = copy.deepcopy(serving)
    changed["spec"]["broker"]["redis"]["url"] = f"redis://{story.node}:1/0"
    _is_refused(story, changed, "BrokerReachable", "False", "ConnectionFailed", f"{story.node}:1")
    _goes_on(story, serving)


def test_an_image_that_is_missing(serving: Body, story: Story) -> None:
    changed = copy.deepcopy(serving)
    container = changed["spec"]["template"]["spec"]["containers"][0]
    container |= {"image": "queueworker/none:dev", "imagePullPolicy": "Never"}
    story.apply(changed)
    message = story.then_condition("Reconciling", "True", "WorkersFailing")
    assert "queueworker/none:dev" in message
    _goes_on(story, serving)


def test_a_template_that_the_api_server_refuses(serving: Body, story: Story) -> None:
    changed = copy.deepcopy(serving)
    changed["spec"]["template"]["spec"]["volumes"] = [{"name": "Not_A_Name", "emptyDir": {}}]
    _is_refused(story, changed, "Stalled", "True", "InvalidTemplate", "Not_A_Name")
    changed["spec"]["template"]["spec"] = {
        **serving["spec"]["template"]["spec"],
        "nodeSelctor": {"disk": "ssd"},
    }
    story.apply(changed)
    wait_until(
        lambda: "nodeSelctor: field not declared" in str(story.condition("Stalled").get("message")),
        "Stalled to name the field that no pod template has",
        LONG,
    )
    assert len(story.deployments()) == 1
    _goes_on(story, serving)


def test_a_version_whose_workers_crash(serving: Body, story: Story) -> None:
    changed = with_version(serving, "v2")
    changed["spec"]["template"]["spec"]["containers"][0]["args"] = ["run", "examples.usage.none:app"]
    story.apply(changed)
    message = story.then_condition("Reconciling", "True", "WorkersFailing")
    assert "exit code 2" in message
    _goes_on(story, serving)


def _is_refused(story: Story, resource: Body, type: str, status: str, reason: str, text: str) -> None:
    story.apply(resource)
    message = story.then_condition(type, status, reason)
    assert text in message, message


def _goes_on(story: Story, serving: Body) -> None:
    """The first version still consumes, and the way back is open."""
    story.publish(event_payloads(30))
    story.then_committed(30)
    assert set(story.by_version()) == {"v1"}
    story.given_ready(serving)
    assert len(story.deployments()) == 1


def _changed(story: Story, message: str) -> str:
    """The message of BrokerReachable once it is another one."""

    def other() -> str | None:
        seen = str(story.condition("BrokerReachable").get("message", message))
        return seen if message not in seen else None

    return wait_until(other, f"another message than {message!r}", LONG)
