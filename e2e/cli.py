"""`python -m e2e`: clusters and images for the end-to-end tests and the cluster demo."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from e2e import appimages, cluster, doctor, engine, network, programs
from e2e.failure import SetupError
from e2e.progress import Progress

NAME_OPTION = click.option("--name", default="dev", show_default=True, help="The cluster's name.")


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
    click.echo(cluster.up(name, int(nodes), Progress()).kubeconfig)


@cluster_commands.command("down")
@click.option("--name", default=None, help="The cluster's name; `dev` when neither this nor --all is given.")
@click.option("--all", "everything", is_flag=True, help="Every cluster of this project.")
@click.option(
    "--engine", "stop_engine", is_flag=True, help="With --all: stop the private Docker engine as well."
)
def cluster_down(name: str | None, everything: bool, stop_engine: bool) -> None:
    """Remove a cluster, whole or half dead; harmless when it is not there."""
    if everything and name is not None:
        raise click.UsageError("--name and --all exclude each other")
    if stop_engine and not everything:
        raise click.UsageError("--engine stops every cluster, so it goes with --all")
    progress = Progress()
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
            f"kubeconfig {one.kubeconfig or 'none'}"
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
    cluster.load(name, images, Progress())


@commands.group("images")
def image_commands() -> None:
    """Our own images."""


@image_commands.command("build")
def images_build() -> None:
    """Build the worker, operator, demo worker and broker images, and print their sizes."""
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
    progress = Progress()
    programs.announce(("helm",), progress)
    docker, _, _ = cluster.prepare(progress)
    programs.tool("helm", progress)
    appimages.build_all(docker, progress)


@commands.command("tool")
@click.argument("name")
def tool(name: str) -> None:
    """Print the path of a pinned tool (helm, kubectl, kind), building it when it is not cached."""
    progress = Progress()
    if name in programs.TOOLS:
        programs.announce((programs.TOOLS[name],), progress)
    click.echo(programs.tool(name, progress))


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
