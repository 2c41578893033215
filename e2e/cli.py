"""`python -m e2e`: clusters and images for the end-to-end tests and the cluster demo."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import FrameType

import click

from e2e import appimages, cluster, doctor, engine, network, programs, servers
from e2e.failure import SetupError
from e2e.progress import Progress
from e2e.rollbacks import rollbacks

NAME_OPTION = click.option("--name", default="dev", show_default=True, help="The cluster's name.")


def _end_on_sigterm() -> None:
    """SIGTERM unwinds, so that what runs is ended and a cluster that is half made removed."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


@click.group()
def commands() -> None:
    """Clusters and images for the end-to-end tests and the cluster demo."""


@commands.group("cluster")
def cluster_commands() -> None:
    """kind clusters, several side by side, owned by name."""


@cluster_commands.command("up")
@NAME_OPTION
@click.option("--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True)
def cluster_up(name: str, nodes: str) -> None:
    """Have a ready cluster: the living one of that name, else a new one. Prints its kubeconfig's path."""
    _end_on_sigterm()
    click.echo(cluster.up(name, int(nodes), Progress()).kubeconfig)


@cluster_commands.command("down")
@click.option("--name", default=None, help="The cluster's name; `dev` when neither this nor --all is given.")
@click.option("--all", "everything", is_flag=True, help="Every cluster of this project.")
@click.option("--leftovers", is_flag=True, help="What test runs that were killed left, and nothing else.")
@click.option(
    "--engine", "stop_engine", is_flag=True, help="With --all: stop the private Docker engine as well."
)
def cluster_down(name: str | None, everything: bool, leftovers: bool, stop_engine: bool) -> None:
    """Remove a cluster, whole or half dead; harmless when it is not there."""
    if (name is not None) + everything + leftovers > 1:
        raise click.UsageError("--name, --all and --leftovers exclude each other")
    if stop_engine and not everything:
        raise click.UsageError("--engine stops every cluster, so it goes with --all")
    progress = Progress()
    if leftovers:
        removed = cluster.remove_left(progress)
        engine.stop_unused(progress)
    else:
        removed = cluster.down(None if everything else name or "dev", progress)
    click.echo(f"removed: {', '.join(removed)}" if removed else "nothing to remove")
    if stop_engine:
        click.echo("engine stopped" if engine.stop(progress) else "no private engine runs")


@cluster_commands.command("status")
@click.option("--json", "as_json", is_flag=True)
def cluster_status(as_json: bool) -> None:
    """List the clusters of this project."""
    found = cluster.status()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
        return
    if not found:
        click.echo("no clusters")
    for one in found:
        state = "ready" if one.api else "API server does not answer" if one.running else "not running"
        click.echo(
            f"{one.name}: {state}; nodes {', '.join(one.nodes) or 'none'}; "
            f"kubeconfig {one.kubeconfig or 'none'}{f'; of {one.owner}' if one.owner else ''}"
        )


@cluster_commands.command("kubeconfig")
@NAME_OPTION
def cluster_kubeconfig(name: str) -> None:
    """Print the path of the cluster's kubeconfig."""
    path = cluster.kubeconfig_path(name)
    if not path.is_file():
        raise SetupError(
            f"cluster {name}: no kubeconfig at {path}; make it with `python -m e2e cluster up --name {name}`"
        )
    click.echo(path)


@cluster_commands.command("load")
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@NAME_OPTION
def cluster_load(images: tuple[str, ...], name: str) -> None:
    """Put images of the engine into every node of the cluster."""
    _end_on_sigterm()
    cluster.load(name, images, Progress())


@commands.group("images")
def image_commands() -> None:
    """Our own images."""


@image_commands.command("build")
def images_build() -> None:
    """Build the worker, operator, demo worker and broker images, and print their sizes."""
    _end_on_sigterm()
    progress = Progress()
    progress.say(
        "to build: four images; about 3 min the first time on a machine, 10 s with their layers cached"
    )
    docker = engine.ensure(progress)
    for built in appimages.build_all(docker, progress):
        click.echo(f"{built.reference}  {built.megabytes:.0f} MB, {built.above_base:.0f} MB above its base")


@commands.command("prepare")
def prepare() -> None:
    """Build or pull everything that clusters and their tests are made of, so that it is there later."""
    _end_on_sigterm()
    progress = Progress()
    programs.announce(("helm",), progress)
    docker, _, _ = cluster.prepare(progress)
    programs.tool("helm", progress)
    appimages.build_all(docker, progress)
    for server in servers.every():
        servers.get(server, progress)


@commands.command("tool")
@click.argument("name")
def tool(name: str) -> None:
    """Print the path of a pinned tool (helm, kubectl, kind), building it when it is not cached."""
    _end_on_sigterm()
    progress = Progress()
    if name in programs.TOOLS:
        programs.announce((programs.TOOLS[name],), progress)
    click.echo(programs.tool(name, progress))


@commands.group("servers")
def server_commands() -> None:
    """Redis and Valkey servers of newer lines than this machine has, for `make test-servers`."""


@server_commands.command("list")
@click.option("--json", "as_json", is_flag=True)
def servers_list(as_json: bool) -> None:
    """List them, with the exact version of those that are cached. Fetches nothing."""
    found = [(one, servers.cached(one)) for one in servers.every()]
    if as_json:
        rows = [
            {
                "name": one.name,
                "product": one.product,
                "line": one.line,
                "suite": one.suite,
                "version": have.version if have else None,
                "path": str(have.path) if have else None,
                "packages": have.packages if have else {},
            }
            for one, have in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for one, have in found:
        state = f"{have.version}  {have.path}" if have else "not fetched yet"
        click.echo(f"{one.name:<9} Debian {one.suite:<7} {state}")


@server_commands.command("get")
@click.argument("name")
def servers_get(name: str) -> None:
    """Print the folder for the PATH whose `redis-server` is NAME, fetching it when it is not cached."""
    _end_on_sigterm()
    click.echo(servers.get(servers.known(name), Progress()).path)


@server_commands.command("test")
@click.argument("names", metavar="[NAME...]", nargs=-1)
def servers_test(names: tuple[str, ...]) -> None:
    """Run the broker suite on each of them, or on those that are named. Code 1 when one run fails."""
    progress = Progress()
    chosen = [servers.known(name) for name in names] or servers.every()
    fetched = [servers.get(one, progress) for one in chosen]
    # Half of a run is waiting, so as many at once as there are cores.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        runs = {pool.submit(servers.run_suite, one): one.title for one in fetched}
        progress.say(f"the broker suite on {', '.join(runs.values())} (about 3 min)")
        failed = []
        for run in as_completed(runs):
            passed, output = run.result()
            click.echo(output)
            progress.say(f"{runs[run]}: {'passed' if passed else 'failed'}")
            if not passed:
                failed.append(runs[run])
    if failed:
        raise SetupError(f"the broker suite failed on {', '.join(failed)}")


@commands.command("doctor")
def doctor_command() -> None:
    """One line per needed tool: found, or how it is got. Code 1 when something cannot be had here."""
    findings = doctor.examine()
    for finding in findings:
        click.echo(f"{'ok     ' if finding.usable else 'MISSING'} {finding.name}: {finding.text}")
    if not all(finding.usable for finding in findings):
        sys.exit(1)


def _docker() -> engine.Engine:
    found = engine.running()
    if found is None:
        raise SetupError(
            "docker: no engine answers, so there is no cluster; `python -m e2e cluster up` starts one"
        )
    return found


commands.add_command(rollbacks)


@commands.command("partition")
@click.argument("node")
@NAME_OPTION
def partition(node: str, name: str) -> None:
    """Cut NODE off from its control plane; its pods still reach everything else."""
    network.partition(_docker(), cluster.full_name(name), node)


@commands.command("heal")
@click.argument("node")
@NAME_OPTION
def heal(node: str, name: str) -> None:
    """Undo `partition`."""
    network.heal(_docker(), cluster.full_name(name), node)


def main() -> None:
    """Run the command line; what a person can mend is one line on standard error and code 1."""
    try:
        commands(prog_name="python -m e2e")
    except SetupError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
