"""One thousand jobs through a change of version, on a kind cluster: `make demo-kind`.

Makes a cluster, installs the operator by its charts, applies examples/queueworker.yaml, publishes the events
of a file, changes the version of the resource half way, shows how pods of both revisions consume, and adds up
at the end. Exit code 0 only if every job was committed and nothing private is left on the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from e2e import appimages, baseimages, cluster, engine, programs
from e2e.commands import run
from e2e.failure import SetupError
from e2e.install import install
from e2e.progress import Progress
from examples.demo import (
    EVENT_FILE,
    NAME,
    NAMESPACE,
    QUEUE,
    RESOURCE,
    DemoFailed,
    Progressing,
    half_way,
    is_ready,
    line,
    picture,
    publish,
    status_of,
    summary,
)
from worker_runtime.brokers.connect import broker_from_url

HOME, PLACE = "queueworker-system", "demo"
READY_SECONDS, ROLL_SECONDS, SETTLE_SECONDS = 180.0, 240.0, 180.0

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
    docker = engine.ensure(progress)
    appimages.build_all(docker, progress)
    target = cluster.up(name, 1, progress)
    images = (appimages.OPERATOR_IMAGE, appimages.DEMO_WORKER_IMAGE, baseimages.BROKER_IMAGE)
    cluster.load(name, images, progress)
    place = Place(target)
    with progress.step("installing the charts queueworker-crds and queueworker", "20 s"):
        helm = programs.tool("helm", progress)
        install(helm, target.kubectl, target.kubeconfig, HOME)
    with progress.step("starting a broker in the cluster"):
        run(
            [target.kubectl, "--kubeconfig", target.kubeconfig, "apply", "-f", "-"],
            stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}}),
        )
        # What an earlier demo left in a cluster that was kept would count as left over.
        place.kubectl("delete", "queueworker", NAME, "--ignore-not-found", "--timeout=120s", timeout=150)
        place.kubectl("delete", "deployment", "redis", "--ignore-not-found", "--timeout=60s")
        listed = {"apiVersion": "v1", "kind": "List", "items": BROKER}
        place.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
        place.kubectl("rollout", "status", "deployment/redis", "--timeout=90s")
    return place


async def look(progress: Progressing, place: Place, url: str) -> None:
    """Read the cluster and the broker once into what the picture shows."""
    body = await asyncio.to_thread(place.resource)
    progress.state = {"resources": {NAME: {"status": body.get("status", {})}}}
    inspector = broker_from_url(url, NAMESPACE).inspector()
    try:
        progress.reading = await inspector.read(QUEUE)
    finally:
        await inspector.close()


async def show(progress: Progressing, place: Place, url: str, console: Console) -> None:
    """Look and draw, until cancelled."""
    if not console.is_terminal:
        while True:
            await look(progress, place, url)
            console.print(line(progress), highlight=False, markup=False)
            await asyncio.sleep(1)
    with Live(picture(progress), console=console, refresh_per_second=4) as live:
        while True:
            await look(progress, place, url)
            live.update(picture(progress))
            await asyncio.sleep(0.3)


@asynccontextmanager
async def shown(progress: Progressing, place: Place, url: str, console: Console) -> AsyncIterator[None]:
    drawing = asyncio.create_task(show(progress, place, url, console))
    try:
        yield
    finally:
        drawing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drawing


async def until(what: str, seconds: float, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise SetupError(f"{what} did not come within {seconds:.0f} s")
        await asyncio.sleep(0.2)


async def story(place: Place, url: str, console: Console) -> bool:
    """From `kubectl apply` to the sum at the end; true if nothing is missing."""
    events = [row.encode() for row in EVENT_FILE.read_text().splitlines()]
    progress = Progressing(jobs=len(events), stage="starting")
    begun = time.monotonic()
    place.kubectl("apply", "-f", RESOURCE)
    async with shown(progress, place, url, console):
        await until("the first workers", READY_SECONDS, lambda: is_ready(status_of(progress.state)))
        old = status_of(progress.state)["stable"]["revision"]
        progress.stage = f"{old} consumes"
        console.print(
            f"{NAME} is ready {time.monotonic() - begun:.1f} s after kubectl apply", highlight=False
        )
        change, changed = asyncio.Event(), asyncio.Event()
        publishing = asyncio.create_task(publish(progress, url, events, change, changed))
        await half_way(publishing, change)
        text = RESOURCE.read_text()
        newer = text.replace("value: v1", "value: v2")
        assert newer != text, f"{RESOURCE} has no `value: v1` to change"
        await asyncio.to_thread(place.kubectl, "apply", "-f", "-", stdin=newer)
        progress.stage = "version changed: both consume"

        def rolled() -> bool:
            status = status_of(progress.state)
            return status.get("stable", {}).get("revision") not in (None, old) and is_ready(status)

        await until("the end of the change of version", ROLL_SECONDS, rolled)
        progress.stage = f"{status_of(progress.state)['stable']['revision']} consumes"
        changed.set()
        await publishing
        await until("the last settlement", SETTLE_SECONDS, lambda: progress.settled >= len(events))
        await asyncio.sleep(1)  # one more look, so that the last picture shows the end
    return await summary(progress, url, events, console)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster up, and say how to reach it.")
@click.option("--name", default="demo", show_default=True, help="The cluster's name.")
def main(keep: bool, name: str) -> None:
    """Show a change of version on a kind cluster."""
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    progress = Progress()
    progress.say(
        "make demo-kind: a kind cluster, images of this clone, the charts, and 1,000 jobs. About 3 minutes; "
        "the first time on a machine without a container registry 20 minutes, kept for later"
    )
    code = 1
    try:
        place = prepare(name, progress)
        with place.broker() as url:
            good = asyncio.run(story(place, url, console))
        console.print("[green]Nothing was lost.[/]" if good else "[red]Not every job was committed.[/]")
        code = 0 if good else 1
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
