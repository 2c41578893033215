"""`kubectl queueworker report`: gathers what the page of one QueueWorker shows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from queueworker_operator.api.names import KIND
from queueworker_operator.apiserver import ApiError, ApiServer, UnavailableError, events
from queueworker_operator.cli.page import Event, page
from queueworker_operator.cli.place import UNREACHABLE, Place, named, place_options, run
from queueworker_operator.cli.seen import NotSeenError, Seen, in_cluster, local_state, of_state
from queueworker_operator.cli.spec_in_cluster import ForbiddenError, SpecInCluster
from queueworker_operator.run.local_file import BadFileError, parse_text, read_text

_Read = tuple[Seen, Mapping[str, Any], list[Event] | str]


@click.command(short_help="Write one as an HTML page: change, gates, events.")
@click.argument("name", callback=named)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    default="-",
    metavar="FILE",
    help="Where the page is written; standard output when left out.",
)
@place_options
def report(name: str, output: Path, **place: Any) -> None:
    """Write NAME as one HTML page: the change, revisions, gates with plots, conditions, events.

    The page needs no script and no network. Exit codes: 0 written, 1 not there, 2 the cluster, the usage or
    the output is wrong.
    """

    async def beside(local: Path) -> _Read:
        return _from_up(local, name)

    async def there(api: ApiServer, namespace: str) -> _Read:
        return await _from_cluster(api, namespace, name)

    try:
        seen, spec, told = run(Place(**place), beside, there)
    except ForbiddenError as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(UNREACHABLE) from None
    text = page(seen, spec, told, datetime.now(UTC))
    if str(output) == "-":
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        click.echo(f"error: {output} cannot be written: {error.strerror or error}", err=True)
        raise SystemExit(UNREACHABLE) from None
    click.echo(f"{seen.title}: wrote {output}")


def _from_up(place: Path, name: str) -> _Read:
    up_json, state = local_state(place)
    (seen,) = of_state(up_json, state, name)
    spec: Mapping[str, Any] = {}
    with suppress(BadFileError, KeyError):
        file = Path(state["file"])
        document = parse_text(file, read_text(file)).resources.get(name)
        spec = (document.body.get("spec") or {}) if document else {}
    rows = state["resources"][name].get("events", [])
    return seen, spec, [Event(None, one["type"], one["reason"], one["message"]) for one in rows]


async def _from_cluster(api: ApiServer, namespace: str, name: str) -> _Read:
    subject = await SpecInCluster(api, namespace, name).read()
    seen = subject.seen
    # Rights to the resource alone are enough for a page without pods.
    with suppress(ApiError, NotSeenError):
        (seen,) = await in_cluster(api, namespace, name)
    return replace(seen, namespace=namespace), subject.spec, await _events(api, namespace, name)


async def _events(api: ApiServer, namespace: str, name: str) -> list[Event] | str:
    fields = f"regarding.kind={KIND},regarding.name={name}"
    try:
        bodies = [body async for body in api.each(events(namespace), fields=fields)]
    except (ApiError, UnavailableError) as error:
        return f"The events cannot be read: {error}"
    told = [
        Event(
            _moment(body), str(body.get("type", "")), str(body.get("reason", "")), str(body.get("note", ""))
        )
        for body in bodies
    ]
    return sorted(told, key=lambda one: one.at or datetime.min.replace(tzinfo=UTC))


def _moment(body: Mapping[str, Any]) -> datetime | None:
    """When it happened, as far as it says."""
    said = body.get("eventTime") or body["metadata"].get("creationTimestamp")
    try:
        return datetime.fromisoformat(str(said)).astimezone(UTC)
    except ValueError:
        return None
