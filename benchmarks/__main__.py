"""`python -m benchmarks`: figures that anyone can check."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import broker_command, operator_command, profiling, transitions_command


def main(words: Sequence[str] | None = None) -> int:
    """`words` as on the command line. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    broker_command.add_commands(commands)
    profiling.add_command(commands)
    transitions_command.add_command(commands)
    operator_command.add_command(commands)
    arguments = parser.parse_args(words)
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
