"""Two QueueWorkers on one queue: the last workers that can recover are counted over both."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.fixtures import wait_until
from tests.cluster.operators import Installed
from tests.cluster.story import SOON, Story, event_payloads, queueworker, with_version

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]

#: How the proof may end.
ENDS = {"EmptyAndQuiet", "NotApplicable"}
_REASON = '{.status.conditions[?(@.type=="RegistryEmpty")].reason}{"\\n"}'


@contextmanager
def told(story: Story, name: str, file: Path) -> Iterator[Path]:
    """Every reason of RegistryEmpty that the resource says meanwhile, one a line."""
    kubectl = story.kubectl
    where = ("--kubeconfig", kubectl.kubeconfig, "--namespace", kubectl.namespace)
    command = (kubectl.program, *where, "get", "qw", name, "--watch", "-o", f"jsonpath={_REASON}")
    with file.open("wb") as out, subprocess.Popen(command, stdout=out, stdin=subprocess.DEVNULL) as watch:
        try:
            wait_until(lambda: file.stat().st_size > 0, "the watch has begun", SOON)
            yield file
        finally:
            watch.terminate()


def test_the_last_capable_worker_is_counted_over_both(
    installed: Installed, story: Story, tmp_path: Path
) -> None:
    one = queueworker(story.given_broker(), "one", replicas=1, shutdownSeconds=5)
    other = with_version(queueworker(story.url, "other", replicas=1, shutdownSeconds=5), "v9")
    story.given_ready(one)
    story.given_ready(other)

    def to_nobody(name: str) -> set[str]:
        with told(story, "one", tmp_path / name) as file:
            story.kubectl("scale", "qw/one", "--replicas=0")
            wait_until(lambda: not story.pods("one"), "no worker of it is left", SOON)
            wait_until(lambda: ENDS & set(file.read_text().split()), "the last word is heard", SOON)
            wait_until(lambda: story.stage("one") == "Idle", "it is at rest", SOON)
        return set(file.read_text().split())

    with story.publishing(event_payloads(200), pause=0.2):
        beside = to_nobody("beside")
    assert "NotApplicable" in beside, "the other one recovers what it left"
    assert "EmptyAndQuiet" not in beside
    story.then_committed(200)

    story.kubectl("scale", "qw/one", "--replicas=1")
    story.then_serves(one)
    story.kubectl("scale", "qw/other", "--replicas=0")
    wait_until(lambda: not story.pods("other"), "no worker of the other is left", SOON)
    alone = to_nobody("alone")
    assert "EmptyAndQuiet" in alone, "nobody else could recover, so it was proven"
    assert "NotApplicable" not in alone
    assert story.reading().private == 0
