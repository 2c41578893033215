"""The verbs of `kubectl queueworker`: each writes one field of a spec."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import click

from queueworker_operator.apiserver import ApiServer
from queueworker_operator.cli.follow import NOBODY_ACTS, TIMED_OUT, Outcome, follow
from queueworker_operator.cli.place import UNREACHABLE, Place, named, place_options, run
from queueworker_operator.cli.spec_in_cluster import ForbiddenError, SpecInCluster, WrittenBetweenError
from queueworker_operator.cli.spec_in_file import SpecInFile
from queueworker_operator.cli.spec_text import CannotEditError
from queueworker_operator.cli.wishes import Decided, Edit, RefusedWishError, Subject, Verb, Wish, decide
from worker_runtime.cli.options import Seconds, in_utf8

#: How often it is decided anew when somebody else writes the spec at the same time.
TRIES = 5


class Spec(Protocol):
    """Where the spec of one QueueWorker is."""

    async def read(self) -> Subject: ...

    async def write(self, subject: Subject, edit: Edit, *, dry_run: bool) -> dict[str, Any]: ...

    def notices(self, subject: Subject, edit: Edit) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class _How:
    """Options that all verbs have."""

    force: bool
    dry_run: bool
    wait: bool
    timeout: float
    as_json: bool


@dataclass(frozen=True, slots=True)
class _Told:
    """What one verb did."""

    subject: Subject
    decided: Decided
    #: The patch, or the file and the difference; None where nothing had to be written.
    written: dict[str, Any] | None
    notices: tuple[str, ...]
    outcome: Outcome | None = None


_CODES = (
    "Exit codes: 0 written, or as asked already; with --wait also answered, done and at rest. 1 not there, "
    "2 the cluster, the file or the usage is wrong. 5 nothing is written: it would be ignored, or another "
    "request is not answered yet, or nobody acts on the file; with --wait also when its queueworker up ends "
    "meanwhile. With --wait: 3 not at rest in time, 4 at rest and blocked by something else, 6 ignored or "
    "replaced."
)


def _command(short_help: str) -> Callable[[Callable[..., None]], click.Command]:
    return click.command(epilog=_CODES, short_help=short_help)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--timeout",
            type=Seconds(min=0, min_open=True),
            default=600.0,
            show_default=True,
            metavar="SECONDS",
            help="How long --wait waits at most.",
        ),
        click.option("--wait", is_flag=True, help="Wait until it is answered and the change is at rest."),
        click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing."),
    ):
        command = option(command)
    return click.argument("name", callback=named)(place_options(command))


_FORCE = click.option("--force", is_flag=True, help="Put it in the place of one that is not answered yet.")


@_command("End all steps: the new revision takes over.")
@_options
@_FORCE
def promote(name: str, **given: Any) -> None:
    """End all steps of the change: the new revision takes over. Begins a change of the strategy Manual."""
    _ask(_request(Verb.PROMOTE), name, given)


@_command("End the pause or the analysis that the canary is at.")
@_options
@_FORCE
def skip(name: str, **given: Any) -> None:
    """End the pause or the analysis that the canary is at."""
    _ask(_request(Verb.SKIP), name, given)


@_command("Take the change back to the stable revision.")
@_options
@_FORCE
def abort(name: str, **given: Any) -> None:
    """Take the change back to the stable revision by the guarded way."""
    _ask(_request(Verb.ABORT), name, given)


@_command("Bring out again what was aborted, or measure again.")
@_options
@_FORCE
def retry(name: str, **given: Any) -> None:
    """Bring out after all what was aborted or rolled back, or measure again what did not pass."""
    _ask(_request(Verb.RETRY), name, given)


@_command("Go back to the revision that served before, or a kept one.")
@_options
@_FORCE
@click.option("--to", default="", metavar="REVISION", callback=in_utf8, help="One of status.kept; see get.")
def rollback(name: str, to: str, **given: Any) -> None:
    """Go back by the guarded way: to the stable revision while a change is under way, else to the one that
    served before, or to a kept one."""
    if len(to) > 63:
        raise click.UsageError("--to: the name of a revision has 63 characters at most")
    _ask(_request(Verb.ROLLBACK, to), name, given)


@_command("Stop a change forward where it is; what runs goes on.")
@_options
def pause(name: str, **given: Any) -> None:
    """Stop a change forward where it is; what runs goes on."""
    _ask(Wish(Verb.PAUSE), name, given)


@_command("End a pause.")
@_options
def resume(name: str, **given: Any) -> None:
    """End a pause."""
    _ask(Wish(Verb.RESUME), name, given)


@_command("Keep every change from beginning; what has begun goes on.")
@_options
@_FORCE
@click.option("--reason", required=True, metavar="TEXT", callback=in_utf8, help="Why, for whoever wonders.")
def hold(name: str, reason: str, **given: Any) -> None:
    """Keep every change from beginning; what has begun goes on."""
    if not 1 <= len(reason) <= 256:
        raise click.UsageError("--reason: 1 to 256 characters")
    _ask(Wish(Verb.HOLD, reason=reason), name, given)


@_command("End a hold.")
@_options
def release(name: str, **given: Any) -> None:
    """End a hold."""
    _ask(Wish(Verb.RELEASE), name, given)


VERBS = (promote, skip, abort, retry, rollback, pause, resume, hold, release)


def _request(verb: Verb, to: str = "") -> Wish:
    """With a fresh id, which says what was asked and when."""
    return Wish(verb, f"{verb}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", to=to)


def _ask(wish: Wish, name: str, given: dict[str, Any]) -> None:
    options = (given.pop(key) for key in ("dry_run", "wait", "timeout", "as_json"))
    how = _How(given.pop("force", False), *options)

    async def in_file(local: Path) -> _Told:
        return await _do(SpecInFile(local, name), wish, how)

    async def in_cluster(api: ApiServer, namespace: str) -> _Told:
        return await _do(SpecInCluster(api, namespace, name), wish, how)

    code, error = NOBODY_ACTS, ""
    try:
        told = run(Place(**given), in_file, in_cluster, TIMED_OUT)
    except (RefusedWishError, WrittenBetweenError) as refusal:
        error = f"{wish.verb} {name}: nothing is written: {refusal}"
    except (ForbiddenError, CannotEditError) as refusal:
        code, error = UNREACHABLE, f"{wish.verb} {name}: nothing is written: {refusal}"
    if error:
        click.echo(f"error: {error}", err=True)
        sys.exit(code)
    click.echo(json.dumps(_as_json(wish, told, how), indent=1) if how.as_json else _as_text(wish, told, how))
    if told.outcome is not None:
        sys.exit(told.outcome.code)


async def _do(spec: Spec, wish: Wish, how: _How) -> _Told:
    """Decide and write; anew where somebody else wrote in between, whose wish may be in the way now."""
    for left in reversed(range(TRIES)):
        subject = await spec.read()
        decided = decide(wish, subject, datetime.now(UTC), force=how.force)
        told = _Told(subject, decided, None, decided.notices)
        if decided.edit is None:
            break
        try:
            written = await spec.write(subject, decided.edit, dry_run=how.dry_run)
        except WrittenBetweenError:
            if not left:
                raise
            continue
        notices = (*decided.notices, *spec.notices(subject, decided.edit))
        told = _Told(subject, decided, written, notices)
        break
    if how.dry_run or not how.wait:
        return told
    if not how.as_json:
        click.echo(_as_text(wish, told, how))
    outcome = await follow(spec.read, wish, how.timeout, lambda text: click.echo(f"  now: {text}", err=True))
    return _Told(told.subject, told.decided, told.written, told.notices, outcome)


def _as_text(wish: Wish, told: _Told, how: _How) -> str:
    if told.outcome is not None:
        return f"  then: {told.outcome.text}"
    title, decided = told.subject.seen.title, told.decided
    if decided.edit is None:
        return f"{title}: {wish.verb}: nothing to write: {decided.before.replace('was', 'is', 1)}"
    would = "would write" if how.dry_run else "wrote"
    lines = [f"{title}: {wish.verb}: {would} {_said(decided.edit)}", f"  before: {decided.before}"]
    lines.append(f"  next: {decided.following}")
    lines += [f"  note: {one}" for one in told.notices]
    if how.dry_run and told.written is not None:
        lines += told.written.get("diff") or [json.dumps(told.written["patch"], indent=1)]
    return "\n".join(lines)


def _said(edit: Edit) -> str:
    if edit.value is None:
        return f"no {edit.path}"
    if edit.field == "request":
        to = f" to {edit.value['revision']}" if "revision" in edit.value else ""
        return f"{edit.path}: {edit.value['action']}{to}, id {edit.value['id']}"
    return f"{edit.path}: {json.dumps(edit.value, ensure_ascii=False)}"


def _as_json(wish: Wish, told: _Told, how: _How) -> dict[str, Any]:
    edit, outcome = told.decided.edit, told.outcome
    said: dict[str, Any] = {
        "namespace": told.subject.seen.namespace,
        "name": told.subject.seen.name,
        "verb": wish.verb.value,
        "written": edit is not None and not how.dry_run,
        "request": wish.id or None,
        "field": edit.path if edit else None,
        "value": edit.value if edit else None,
        "before": told.decided.before,
        "next": told.decided.following,
        "notices": list(told.notices),
        **(told.written or {}),
    }
    if outcome is not None:
        said |= {
            "code": outcome.code,
            "outcome": outcome.text,
            "answer": outcome.found.answer.name.lower() if outcome.found else None,
            "reason": outcome.found.reason if outcome.found else None,
        }
    return said
