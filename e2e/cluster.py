"""kind clusters owned by name: several side by side, made again when dead, removed even after a crash."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e import baseimages, cache, engine, inotify, network, nodeimage, owners, programs
from e2e.commands import run
from e2e.engine import CLUSTER_LABEL, OWN_PREFIX, Engine
from e2e.failure import SetupError
from e2e.locations import cache_root, cluster_root
from e2e.progress import Progress
from e2e.signals import INTERRUPTIONS

T = TypeVar("T")

READY_SECONDS = 240.0
# A living API server that is slow under load is waited for this long before its cluster is taken for dead.
REUSE_SECONDS = 20.0
POLL_SECONDS = 0.3
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that answers."""

    name: str
    kubeconfig: Path
    kubectl: Path
    engine: Engine

    def kubectl_json(self, *arguments: str) -> Any:
        """The parsed output of `kubectl ARGUMENTS -o json`."""
        command: list[str | Path] = [
            self.kubectl,
            "--kubeconfig",
            self.kubeconfig,
            "--request-timeout=20s",
            *arguments,
            "-o",
            "json",
        ]
        return json.loads(run(command, timeout=60).stdout)


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of one cluster. `api` says whether its API server answers ready, `owner` which run made
    it for itself; empty for one that is kept on purpose."""

    name: str
    nodes: tuple[str, ...]
    running: bool
    api: bool
    kubeconfig: str
    owner: str


def full_name(name: str) -> str:
    """The cluster's name in the engine: ours begin with a prefix, so that nobody else's is ever touched."""
    short = name.removeprefix(OWN_PREFIX)
    if not NAME_PATTERN.fullmatch(short):
        raise SetupError(f"cluster name {name!r}: use up to 32 lower-case letters, digits and inner dashes")
    return OWN_PREFIX + short


def kubeconfig_path(name: str) -> Path:
    """Where the cluster's kubeconfig is or will be."""
    return cluster_root(full_name(name)) / "kubeconfig"


def kind_configuration(nodes: int) -> str:
    """The kind configuration of `nodes` nodes, the first of them the control plane."""
    roles = ["control-plane", *["worker"] * (nodes - 1)]
    listed = "\n".join(f"  - role: {role}" for role in roles)
    # kubelet 1.35 and later refuse a host with cgroup v1 unless told that it is accepted.
    return f"""kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking:
  disableDefaultCNI: true
  podSubnet: {network.POD_NETWORK}
kubeadmConfigPatches:
  - |
    kind: KubeletConfiguration
    apiVersion: kubelet.config.k8s.io/v1beta1
    failCgroupV1: false
nodes:
{listed}
"""


def prepare(progress: Progress) -> tuple[Engine, str, Path]:
    """The engine, the node image's reference and kind: all that a cluster is made of. Says what it makes."""
    docker = engine.ensure(progress)
    if not nodeimage.is_ready(docker):
        if baseimages.registry_answers(docker):
            programs.announce(("kind",), progress)
            progress.say("to pull, once: the published node image, 1 GB on disk")
        else:
            programs.announce((*programs.NODE_MODULES, "kind"), progress)
            progress.say("to make, once: a Debian file system (1 min) and the node image (2 min)")
        progress.say("then a cluster takes about 30 s; programs and images are kept for next time")
    return docker, nodeimage.obtain(docker, progress), programs.tool("kind", progress)


def up(name: str, nodes: int, progress: Progress) -> Cluster:
    """A ready cluster of that name and size: the living one, else a new one. Raises SetupError."""
    cluster = full_name(name)
    if nodes not in (1, 3):
        raise SetupError(f"cluster {cluster}: {nodes} nodes asked for; 1 and 3 are possible")
    with cache.exclusive(cache_root(), f"cluster-{cluster}", progress.say):
        docker, image, kind = prepare(progress)
        result = Cluster(cluster, kubeconfig_path(name), kubectl(docker, image, progress), docker)
        existing = network.node_containers(docker, cluster)
        if existing:
            living = len(existing) == nodes and all(node.whole for node in existing)
            if living and _api_ready(result, REUSE_SECONDS):
                progress.say(f"cluster {cluster} is up already, with {nodes} node(s)")
                # Routes and rules are not kept where the machine, and with it each node, was started again.
                _connect(result, nodes)
                _await_ready(result, nodes, progress)
                return result
            progress.say(
                f"cluster {cluster} is there but is dead or has other than {nodes} node(s): replacing it"
            )
            _remove(docker, cluster)
        inotify.check(cluster, nodes, inotify.room())
        with progress.step(
            f"creating cluster {cluster} with {nodes} node(s)", "20 s" if nodes == 1 else "40 s"
        ):
            _create(result, kind, image, nodes)
        with progress.step("connecting pods", "5 s"):
            _connect(result, nodes)
        _await_ready(result, nodes, progress)
        return result


def kubectl(docker: Engine, image: str, progress: Progress) -> Path:
    """kubectl of the cluster's own version: as built, else taken out of the published node image."""
    if image.startswith("queueworker/"):
        return programs.tool("kubectl", progress)
    recipe = cache.Recipe("kubectl", (("image", image),))

    def build(folder: Path) -> None:
        container = docker.docker("create", image).stdout.strip()
        try:
            docker.docker("cp", f"{container}:/usr/bin/kubectl", folder / "kubectl")
        finally:
            docker.docker("rm", "--force", "--volumes", container)

    return cache.obtain(cache_root(), recipe, build, progress.say) / "kubectl"


def _create(target: Cluster, kind: Path, image: str, nodes: int) -> None:
    folder = target.kubeconfig.parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    configuration = folder / "kind.yaml"
    configuration.write_text(kind_configuration(nodes))
    command: list[str | Path] = [kind, "create", "cluster", "--name", target.name, "--image", image]
    try:
        run(
            [*command, "--config", configuration, "--kubeconfig", target.kubeconfig],
            environment=target.engine.environment,
            timeout=600,
        )
    except BaseException:
        _remove(target.engine, target.name)
        raise


def _connect(target: Cluster, nodes: int) -> None:
    def ranges() -> dict[str, str] | None:
        items = target.kubectl_json("get", "nodes")["items"]
        found = {item["metadata"]["name"]: item["spec"].get("podCIDR", "") for item in items}
        return found if len(found) == nodes and all(found.values()) else None

    known = _await(ranges, f"cluster {target.name}: its {nodes} node(s) got no pod address range")
    network.configure_pods(target.engine, network.node_containers(target.engine, target.name), known)


def _await_ready(target: Cluster, nodes: int, progress: Progress) -> None:
    def ready() -> bool | None:
        items = target.kubectl_json("get", "nodes")["items"]
        conditions = [
            any(
                one["type"] == "Ready" and one["status"] == "True"
                for one in item["status"].get("conditions", [])
            )
            for item in items
        ]
        if len(conditions) != nodes or not all(conditions):
            return None
        dns = target.kubectl_json("get", "deployment", "coredns", "--namespace", "kube-system")
        available = dns["status"].get("availableReplicas", 0)
        accounts = target.kubectl_json("get", "serviceaccounts", "--namespace", "default")["items"]
        return True if available == dns["spec"]["replicas"] and accounts else None

    with progress.step("waiting for nodes and cluster DNS", "15 s"):
        _await(ready, f"cluster {target.name}: nodes or CoreDNS did not become ready")


def _await(probe: Callable[[], T | None], failure: str) -> T:
    deadline = time.monotonic() + READY_SECONDS
    last = ""
    while time.monotonic() < deadline:
        try:
            found = probe()
        except SetupError as error:
            last = f"; last answer: {error}"
            found = None
        if found is not None:
            return found
        time.sleep(POLL_SECONDS)
    raise SetupError(
        f"{failure} within {READY_SECONDS:.0f} s{last}; see `kubectl get pods -A` with its kubeconfig"
    )


def _api_ready(target: Cluster, seconds: float = 0.0) -> bool:
    if not target.kubeconfig.is_file():
        return False
    command: list[str | Path] = [
        target.kubectl,
        "--kubeconfig",
        target.kubeconfig,
        "--request-timeout=5s",
        "get",
        "--raw",
        "/readyz",
    ]
    deadline = time.monotonic() + seconds
    while True:
        try:
            if run(command, check=False, timeout=10).stdout.strip() == "ok":
                return True
        except SetupError:
            pass
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)


def names(docker: Engine) -> list[str]:
    """The full names of our clusters of which the engine has a container."""
    template = f'{{{{.Label "{CLUSTER_LABEL}"}}}}'
    listed = docker.docker(
        "ps", "--all", "--filter", f"label={CLUSTER_LABEL}", "--format", template
    ).stdout.split()
    return sorted({name for name in listed if name.startswith(OWN_PREFIX)})


def down(name: str | None, progress: Progress) -> list[str]:
    """Remove the named cluster, or all of ours, whole or half dead; the full names of those that were there.

    An engine that does not run is not started for it: it removes what died with it when it starts.
    """
    clusters = cache_root() / "clusters"
    kept = {path.name for path in clusters.iterdir()} if clusters.is_dir() else set()
    docker = engine.running()
    living = set(names(docker)) if docker is not None else set()
    wanted = sorted(kept | living) if name is None else [full_name(name)]
    removed = []
    for cluster in wanted:
        with cache.exclusive(cache_root(), f"cluster-{cluster}", progress.say):
            if cluster in living and docker is not None:
                with progress.step(f"removing cluster {cluster}", "5 s"):
                    _remove(docker, cluster)
            shutil.rmtree(cluster_root(cluster), ignore_errors=True)
        if cluster in living or cluster in kept:
            removed.append(cluster)
    return removed


@contextmanager
def of_this_run(name: str, progress: Progress) -> Iterator[None]:
    """A cluster that is made inside the block goes when it ends, also by SIGINT or SIGTERM, and with it a
    private engine that nobody else uses. After SIGKILL the next run removes both (`remove_left`).

    `name` must be of this run only.
    """

    def remove() -> None:
        down(name, progress)
        engine.stop_unused(progress)

    with owners.owned(full_name(name)), INTERRUPTIONS.removed_at_the_end(remove):
        yield


def remove_left(progress: Progress) -> list[str]:
    """Remove the clusters that ended runs left of their own; the full names of those that were there."""
    removed = []
    for cluster in owners.left():
        owners.end_makers(cluster)
        found = down(cluster, progress)
        removed += found
        if not found:
            # Else once more next time: the engine may make a node that it was asked for before.
            owners.forget(cluster)
    return removed


def _remove(docker: Engine, cluster: str) -> None:
    # What kind's own delete does; by label, so that a half created or half removed cluster goes as well.
    label = f"label={CLUSTER_LABEL}={cluster}"
    containers = docker.docker("ps", "--all", "--quiet", "--filter", label).stdout.split()
    if containers:
        docker.docker("rm", "--force", "--volumes", *containers)
    shutil.rmtree(cluster_root(cluster), ignore_errors=True)


def status() -> list[Status]:
    """Every cluster of ours that the engine or a kept kubeconfig knows; starts nothing."""
    docker = engine.running()
    clusters = cache_root() / "clusters"
    kept = {path.name for path in clusters.iterdir()} if clusters.is_dir() else set()
    found = set(names(docker)) if docker is not None else set()
    result = []
    for cluster in sorted(kept | found):
        containers = network.node_containers(docker, cluster) if docker is not None else []
        path = kubeconfig_path(cluster)
        running = bool(containers) and all(node.whole for node in containers)
        ready = False
        if running and docker is not None:
            silent = Progress()
            image = docker.docker(
                "inspect", "--format", "{{.Config.Image}}", containers[0].name
            ).stdout.strip()
            ready = _api_ready(Cluster(cluster, path, kubectl(docker, image, silent), docker))
        nodes = tuple(node.name for node in containers)
        owner = owners.owner_of(cluster)
        kubeconfig = str(path) if path.is_file() else ""
        result.append(Status(cluster, nodes, running, ready, kubeconfig, str(owner) if owner else ""))
    return result


def load(name: str, images: Sequence[str], progress: Progress) -> None:
    """Put images of the engine into every node of the cluster. Raises SetupError when any is missing."""
    cluster = full_name(name)
    docker = engine.running()
    if docker is None or not network.node_containers(docker, cluster):
        raise SetupError(
            f"cluster {cluster}: not there; make it with `python -m e2e cluster up --name {name}`"
        )
    for image in images:
        if not docker.has_image(image):
            raise SetupError(f"image {image}: not in the engine; build it with `python -m e2e images build`")
    kind = programs.tool("kind", progress)
    with progress.step(f"loading {', '.join(images)} into {cluster}"):
        # One call: the layers that the images share are read once.
        command: list[str | Path] = [kind, "load", "docker-image", *images, "--name", cluster]
        run(command, environment=docker.environment, timeout=600)
