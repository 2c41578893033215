"""Where a command looks: a cluster, or a `queueworker up`."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from queueworker_operator.apiserver import (
    ApiError,
    ApiServer,
    UnavailableError,
    UnreachableConfigError,
    connect,
    namespace_of,
)
from queueworker_operator.cli.seen import NotSeenError
from queueworker_operator.run.local_file import BadFileError

NOT_THERE, UNREACHABLE = 1, 2

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Place:
    """What the options say."""

    local: Path | None
    namespace: str | None
    context: str | None
    kubeconfig: str | None
    everywhere: bool = False

    def __post_init__(self) -> None:
        """Raises click.UsageError for what would be ignored."""
        given = {
            "--namespace": self.namespace,
            "--context": self.context,
            "--kubeconfig": self.kubeconfig,
            "--all-namespaces": self.everywhere,
        }
        of_clusters = [name for name, value in given.items() if value]
        if self.local is not None and of_clusters:
            raise click.UsageError(
                f"{of_clusters[0]} is about a cluster, and --local about a file: leave out one of them"
            )

    def command(self, name: str) -> str:
        """How to call a verb on a QueueWorker there, with {} in the place of the verb."""
        given = {
            "--local": str(self.local) if self.local else None,
            "-n": self.namespace,
            "--context": self.context,
            "--kubeconfig": self.kubeconfig,
        }
        options = [word for option, value in given.items() if value for word in (option, value)]
        quoted = shlex.join([name, *options]).replace("{", "{{").replace("}", "}}")
        program = "kubectl-queueworker" if self.local else "kubectl queueworker"
        return f"{program} {{}} {quoted}"

    def environ(self) -> dict[str, str]:
        return {**os.environ, **({"KUBECONFIG": self.kubeconfig} if self.kubeconfig else {})}


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `Place` is made of."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="Which kubeconfig to use; else KUBECONFIG."),
        click.option("--context", metavar="NAME", help="Which context of the kubeconfig to use."),
        click.option("-n", "--namespace", metavar="NAME", help="Default: that of the context."),
        click.option(
            "--local",
            type=click.Path(path_type=Path, exists=True),
            metavar="FILE|DIR",
            help="Use the queueworker up that runs this file, or keeps its state in this directory.",
        ),
    ):
        command = option(command)
    return command


def named(_: click.Context, __: click.Parameter, text: str) -> str:
    """Callback of a NAME that has to be one: without one, all would be looked at."""
    if not text:
        raise click.BadParameter("is empty: name a QueueWorker, such as one that get shows")
    return text


def run(
    place: Place,
    in_local_mode: Callable[[Path], Awaitable[_Found]],
    in_cluster: Callable[[ApiServer, str], Awaitable[_Found]],
    interrupted: int = 0,
) -> _Found:
    """Do one of the two; the second gets a connection and a namespace, empty for all of them. What goes wrong
    is told, and ends the process; Ctrl-C ends it with `interrupted`."""

    async def there() -> _Found:
        if place.local is not None:
            return await in_local_mode(place.local)
        environ = place.environ()
        async with await connect(environ, place.context) as api:
            namespace = "" if place.everywhere else place.namespace or namespace_of(environ, place.context)
            return await in_cluster(api, namespace)

    try:
        return asyncio.run(there())
    except NotSeenError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(NOT_THERE)
    except UnreachableConfigError as error:
        click.echo(f"error: {error} Beside a queueworker up: --local FILE.", err=True)
        sys.exit(UNREACHABLE)
    except (UnavailableError, ApiError, BadFileError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(UNREACHABLE)
    except KeyboardInterrupt:
        sys.exit(interrupted)
