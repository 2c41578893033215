"""The chart's own service account is enough, for one namespace and for the cluster, and for no more."""

from __future__ import annotations

from uuid import uuid4

import pytest

from e2e.cluster import Cluster
from e2e.fixtures import Helm, Kubectl, wait_until
from tests.cluster.operators import Installed, install, resting
from tests.cluster.story import NAME, SOON, Story, queueworker, with_version

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def _whole_life(story: Story, operator: Installed) -> None:
    """Everything that needs a permission: secret, create, roll, scale, events, finalizer, status, delete."""
    story.given_secret("usage-redis", url=story.given_broker())
    resource = queueworker(broker={"redis": {"secretRef": {"name": "usage-redis"}}}, replicas=1)
    story.given_ready(resource)
    story.given_ready(with_version(resource, "v2"))
    story.kubectl("scale", f"queueworker/{NAME}", "--replicas=0")
    wait_until(lambda: not story.pods(), "scaled to nothing", SOON)
    story.kubectl("delete", "queueworker", NAME, "--timeout=90s")
    (pod,) = operator.kubectl.json("get", "pods")["items"]
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    forbidden = [line for line in operator.log().splitlines() if "cannot" in line and "forbidden" in line]
    assert not forbidden, forbidden[:3]


def test_nothing_is_forbidden_over_the_cluster(installed: Installed, story: Story) -> None:
    _whole_life(story, installed)


def test_nothing_is_forbidden_in_one_namespace(
    installed: Installed, cluster: Cluster, helm: Helm, kubectl: Kubectl, story: Story
) -> None:
    home = f"qw-home-{uuid4().hex[:6]}"
    account = "system:serviceaccount"
    with resting(installed):
        try:
            operator = install(cluster, helm, home, [story.kubectl.namespace])
            _whole_life(story, operator)
            pod = operator.kubectl.json("get", "pods")["items"][0]
            user = f"{account}:{home}:{pod['spec']['serviceAccountName']}"
            for verb, what in (("list", "secrets"), ("get", "secrets"), ("create", "deployments.apps")):
                answer = kubectl("auth", "can-i", verb, what, "--as", user, "-n", "default", check=False)
                assert answer.stdout.strip() == "no", f"{user} may {verb} {what} elsewhere"
            answer = story.kubectl("auth", "can-i", "list", "secrets", "--as", user, check=False)
            assert answer.stdout.strip() == "no", "secrets are read by name, never listed"
        finally:
            helm("uninstall", "queueworker", "--namespace", home, "--wait", check=False)
            kubectl("delete", "namespace", home, "--wait=false", check=False)
