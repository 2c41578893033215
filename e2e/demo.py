"""The demo on a kind cluster: `make demo-kind`.

Makes a cluster, installs the operator by its charts, applies examples/queueworker.yaml, publishes the events
of a file, changes the version of the resource half way, shows how pods of both revisions consume, and adds up
at the end. Then the same with examples/queueworker-canary.yaml: a new version in steps, its promotion, and
the way back, under load. Exit code 0 only if every job was committed and nothing private is left on the
broker.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from e2e import appimages, baseimages, cluster, programs
from e2e.commands import run
from e2e.failure import SetupError
from e2e.install import install
from e2e.progress import Progress
from examples.demo.adding_up import summary
from examples.demo.canary import CANARY_RESOURCE, canary_and_rollback
from examples.demo.change import EVENT_FILE, RESOURCE, Until, change_of_version
from examples.demo.picture import NAME, NAMESPACE, QUEUE, Progressing, drawn, is_ready
from examples.demo.up import DemoFailed
from worker_runtime.brokers.base import Inspector
from worker_runtime.brokers.connect import broker_from_url

HOME, PLACE = "queueworker-system", "demo"
READY_SECONDS, PATIENCE = 180.0, 240.0

BROKER: list[dict[str, Any]] = [
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "redis"},
        "spec": {
            "selector": {"matchLabels": {"app": "redis"}},
            "template": {
                "metadata": {"labels": {"app": "redis"}},
                "spec": {
                    "containers": [
                        {
                            "name": "redis",
                            "image": baseimages.BROKER_IMAGE,
                            "imagePullPolicy": "IfNotPresent",
                            "ports": [{"containerPort": 6379}],
                            "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 1},
                        }
                    ]
                },
            },
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "redis"},
        "spec": {"selector": {"app": "redis"}, "ports": [{"port": 6379}]},
    },
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "usage-redis"},
        "stringData": {"url": f"redis://redis.{PLACE}.svc:6379/0"},
    },
]


@dataclass(frozen=True, slots=True)
class Place:
    """The demo's namespace in its cluster."""

    target: cluster.Cluster

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Run kubectl in the namespace and give what it prints. Raises SetupError."""
        return run([*self._command(), *arguments], stdin=stdin, timeout=timeout).stdout

    def resource(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.kubectl("get", "queueworker", NAME, "-o", "json"))
        return body

    def fresh(self) -> None:
        """No resource, and a broker that knows nothing: what was there before would count as left over."""
        self.kubectl("delete", "queueworker", NAME, "--ignore-not-found", "--timeout=120s", timeout=150)
        self.kubectl("delete", "deployment", "redis", "--ignore-not-found", "--timeout=60s")
        listed = {"apiVersion": "v1", "kind": "List", "items": BROKER}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
        self.kubectl("rollout", "status", "deployment/redis", "--timeout=90s")

    @contextmanager
    def broker(self) -> Iterator[str]:
        """A URL under which this machine reaches the broker, as long as the block runs."""
        forward = subprocess.Popen(
            [*self._command(), "port-forward", "service/redis", ":6379"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert forward.stdout is not None
            said = forward.stdout.readline()
            port = re.search(r"127\.0\.0\.1:(\d+)", said)
            if port is None:
                raise SetupError(f"kubectl port-forward service/redis: no port in {said!r}")
            yield f"redis://127.0.0.1:{port[1]}/0"
        finally:
            forward.terminate()
            forward.wait(20)

    def _command(self) -> list[str | Path]:
        kubeconfig = self.target.kubeconfig
        return [self.target.kubectl, "--kubeconfig", kubeconfig, "--namespace", PLACE]


def prepare(name: str, progress: Progress) -> Place:
    """Cluster, images, charts, broker and secret."""
    target = cluster.up(name, 1, progress)
    images = (appimages.OPERATOR_IMAGE, appimages.DEMO_WORKER_IMAGE, baseimages.BROKER_IMAGE)
    appimages.build_and_load(target, images, progress)
    place = Place(target)
    with progress.step("installing the charts queueworker-crds and queueworker", "20 s"):
        helm = programs.tool("helm", progress)
        install(helm, target.kubectl, target.kubeconfig, HOME)
    run(
        [target.kubectl, "--kubeconfig", target.kubeconfig, "apply", "-f", "-"],
        stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}}),
    )
    return place


async def look(progress: Progressing, place: Place, inspector: Inspector) -> None:
    """Read the cluster and the broker once into what the picture shows."""
    body = await asyncio.to_thread(place.resource)
    progress.status = body.get("status", {})
    progress.reading = await inspector.read(QUEUE)


def patient(progress: Progressing) -> Until:
    """Waits for what is to come, and says what is known when it does not."""

    async def until(what: str, seconds: float, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise SetupError(f"{what} did not come within {seconds:.0f} s; {progress.why}")
            await asyncio.sleep(0.2)

    return until


@asynccontextmanager
async def applied(
    progress: Progressing, place: Place, url: str, console: Console, text: str
) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """The resource of a text, with its first workers. Gives what applies another text of it."""

    async def apply(text: str) -> None:
        await asyncio.to_thread(place.kubectl, "apply", "-f", "-", stdin=text)

    inspector = broker_from_url(url, NAMESPACE).inspector()
    begun = time.monotonic()
    try:
        await apply(text)
        async with drawn(progress, console, lambda: look(progress, place, inspector)):
            await patient(progress)("the first workers", READY_SECONDS, lambda: is_ready(progress.status))
            took = time.monotonic() - begun
            console.print(f"{NAME} is ready {took:.1f} s after kubectl apply", highlight=False)
            yield apply
    finally:
        await inspector.close()


async def first_act(place: Place, url: str, console: Console) -> bool:
    """From `kubectl apply` to the sum at the end; true if nothing is missing."""
    events = [row.encode() for row in EVENT_FILE.read_text().splitlines()]
    progress = Progressing(jobs=len(events))
    text = RESOURCE.read_text()
    async with applied(progress, place, url, console, text) as apply:
        await change_of_version(progress, url, events, text, apply, patient(progress), PATIENCE)
    return await summary(progress, url, events, console)


async def second_act(place: Place, url: str, console: Console) -> bool:
    """A canary, its promotion and a rollback."""
    progress = Progressing()
    text = CANARY_RESOURCE.read_text()
    async with applied(progress, place, url, console, text) as apply:
        published = await canary_and_rollback(
            progress, url, text, apply, patient(progress), console, PATIENCE
        )
    return await summary(progress, url, published, console)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster up, and say how to reach it.")
@click.option("--name", default="demo", show_default=True, help="The cluster's name.")
def main(keep: bool, name: str) -> None:
    """Show a change of version, a canary and a rollback on a kind cluster."""
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    progress = Progress()
    progress.say(
        "make demo-kind: a kind cluster, images of this clone, the charts, and two acts. About 6 minutes; "
        "the first time on a machine without a container registry 20 minutes, kept for later"
    )
    code = 1
    try:
        place = prepare(name, progress)
        results = []
        for act in (first_act, second_act):
            with progress.step("starting a broker in the cluster"):
                place.fresh()
            with place.broker() as url:
                results.append(asyncio.run(act(place, url, console)))
        code = 0 if all(results) else 1
        if keep:
            console.print(
                f"The cluster is kept. To look at it:\n  export KUBECONFIG={place.target.kubeconfig}\n"
                f"  {place.target.kubectl} --namespace {PLACE} get queueworkers,pods\n"
                f"To remove it:\n  python -m e2e cluster down --name {name}",
                markup=False,
            )
    except (SetupError, DemoFailed) as failure:
        console.print(f"The demo failed: {failure}", markup=False)
    except KeyboardInterrupt:
        console.print("Stopped.")
        code = 130
    finally:
        if not keep:
            cluster.down(name, progress)
    sys.exit(code)


if __name__ == "__main__":
    main()
