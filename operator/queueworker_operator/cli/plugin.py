"""`kubectl queueworker`: QueueWorkers in a cluster or in local mode. Reads their status, and writes nothing
but what a verb asks for in their spec."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.live import Live

from queueworker_operator.apiserver import ApiServer, UnavailableError
from queueworker_operator.cli.place import Place, place_options, run
from queueworker_operator.cli.report import report
from queueworker_operator.cli.seen import NotSeenError, Seen, in_cluster, in_local_mode
from queueworker_operator.cli.tree import forest
from queueworker_operator.cli.verbs import VERBS
from queueworker_operator.cli.verdict import verdict, verdict_as_json, verdict_as_text

#: Seconds between two looks of --watch.
PERIOD = 1.0

_Found = TypeVar("_Found")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="queueworker-operator", prog_name="kubectl-queueworker")
def main() -> None:
    """Look at QueueWorkers, where a change stands and what it waits for, and ask something of one.

    In a cluster as `kubectl queueworker`; with --local FILE beside `queueworker up -f FILE`.
    """


for _verb in (*VERBS, report):
    main.add_command(_verb)


@main.command(short_help="Show one or all, as trees of revisions and pods.")
@click.argument("name", required=False, default="")
@click.option("-w", "--watch", "watching", is_flag=True, help="Look again each second until Ctrl-C.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Those of all namespaces.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line per change.")
@place_options
def get(name: str, watching: bool, everywhere: bool, as_json: bool, **place: Any) -> None:
    """Show NAME, or all QueueWorkers, as a tree of revisions and pods.

    Exit codes: 0 shown, 1 not there, 2 the cluster or the usage is wrong.
    """
    if name and everywhere:
        raise click.UsageError("a NAME is in one namespace: leave out -A, or the name")

    async def show(look: Callable[[], Awaitable[list[Seen]]]) -> None:
        if watching:
            await _watch(look, as_json)
        elif as_json:
            click.echo(json.dumps([_as_json(one) for one in await look()], indent=1))
        else:
            Console().print(forest(await look()))

    _run(Place(everywhere=everywhere, **place), name, show)


@main.command(short_help="Say what stops one, what was read, and the way out.")
@click.argument("name", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@place_options
def why(name: str, as_json: bool, **place: Any) -> None:
    """Say what stops NAME, or the only one that is there: the reason, what was read, and the way out.

    Exit codes: 0 moving, or nothing to do; 3 waiting; 4 blocked until somebody does something; 1 not there;
    2 the cluster or the usage is wrong.
    """

    async def tell(look: Callable[[], Awaitable[list[Seen]]]) -> int:
        found_all = await look()
        if not found_all:
            raise NotSeenError("there is no QueueWorker here; see kubectl queueworker get -A")
        if len(found_all) > 1:
            names = ", ".join(one.name for one in found_all)
            raise click.UsageError(f"there is more than one QueueWorker: name one of {names}")
        (seen,) = found_all
        found = verdict(seen)
        if as_json:
            click.echo(json.dumps(verdict_as_json(seen, found), indent=1))
        else:
            command = Place(**place).command(seen.name)
            click.echo("\n".join(verdict_as_text(seen, found, datetime.now(UTC), command)))
        return found.code

    sys.exit(_run(Place(**place), name, tell))


def _as_json(seen: Seen) -> dict[str, Any]:
    return verdict_as_json(seen, verdict(seen)) | {
        "queue": seen.queue,
        "generation": seen.generation,
        "deleting": seen.deleting,
        "status": seen.status.to_body(),
        "members": {
            revision: [{"name": one.name, "state": one.state, "restarts": one.restarts} for one in members]
            for revision, members in seen.members.items()
        },
    }


async def _watch(look: Callable[[], Awaitable[list[Seen]]], as_json: bool) -> None:
    """A reading that fails is shown in the place of the tree, and the next is tried."""
    if not as_json and sys.stdout.isatty():
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                try:
                    live.update(forest(await look()), refresh=True)
                except UnavailableError as error:
                    live.update(str(error), refresh=True)
                await asyncio.sleep(PERIOD)
    shown: list[Seen] | None = None
    while True:
        try:
            seen = await look()
        except UnavailableError as error:
            click.echo(f"cannot look: {error}", err=True)
        else:
            if seen != shown:
                shown = seen
                if as_json:
                    click.echo(json.dumps([_as_json(one) for one in seen]))
                else:
                    Console().print(forest(seen))
            sys.stdout.flush()
        await asyncio.sleep(PERIOD)


def _run(
    place: Place, name: str, use: Callable[[Callable[[], Awaitable[list[Seen]]]], Awaitable[_Found]]
) -> _Found:
    async def beside(local: Path) -> _Found:
        async def look() -> list[Seen]:
            return in_local_mode(local, name)

        return await use(look)

    async def there(api: ApiServer, namespace: str) -> _Found:
        async def look() -> list[Seen]:
            return await in_cluster(api, namespace, name)

        return await use(look)

    return run(place, beside, there)
