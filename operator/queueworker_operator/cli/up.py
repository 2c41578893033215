"""`queueworker up`: run the QueueWorkers of a file on this machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click


@click.command("up", short_help="Run the QueueWorkers of a file on this machine.")
@click.option(
    "-f",
    "--file",
    "file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="QueueWorker documents, and Secret documents that they refer to.",
)
@click.option(
    "--broker",
    metavar="URL|embedded",
    help="Use this broker whatever the file says; 'embedded' starts one for this run.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where up.json, the lock and the workers' logs are kept. "
    "Default: .queueworker/<name of the file> beside the file, without logs.",
)
@click.option(
    "--admin-port-base",
    type=click.IntRange(1024, 65000),
    help="Give workers the free admin ports from this one on; default: any free ports.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def up(
    file: Path, broker: str | None, state_dir: Path | None, admin_port_base: int | None, as_json: bool
) -> None:
    """Run the QueueWorkers of a file on this machine.

    Each revision is a group of processes. Edit the file and the change rolls: new workers first, then the
    old ones are drained. Remove a document and its workers are drained. Ctrl-C drains everything; a second
    one kills.

    Exit codes: 0 drained, 1 the state directory cannot be used or another up works for the file, 2 the file
    or the usage is wrong, 3 the broker refused, 4 a worker left work behind, 5 killed by a second signal.
    """
    # Loaded here: the other commands need nothing of it.
    from queueworker_operator.run.local import CannotStartError, Local, Options
    from queueworker_operator.run.local_console import Console
    from queueworker_operator.run.local_state import StateInUseError

    file = file.absolute()
    options = Options(
        file=file,
        state_dir=(state_dir or file.parent / ".queueworker" / file.stem).absolute(),
        keep_logs=state_dir is not None,
        broker=broker,
        admin_port_base=admin_port_base,
    )

    async def run() -> int:
        return await Local(options, Console(as_json=as_json)).run()

    try:
        code = asyncio.run(run())
    except CannotStartError as error:
        click.echo(str(error), err=True)
        code = error.code
    except StateInUseError as error:
        click.echo(str(error), err=True)
        code = 1
    except OSError as error:
        click.echo(
            f"The state directory {options.state_dir} cannot be used: {error.strerror or error}. "
            "Name one that can be written with --state-dir.",
            err=True,
        )
        code = 1
    sys.exit(code)
