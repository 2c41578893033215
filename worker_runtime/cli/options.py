"""Settings as command-line options, and errors as one line with an exit code."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

import click

from worker_runtime import exits
from worker_runtime.brokers.base import BrokerError, BrokerUsageError, PayloadRefusedError
from worker_runtime.settings import VARIABLES, Settings, SettingsError, Variable, settings_from

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = {field.name: field.default for field in fields(Settings)}
#: Where the default of a field is no value of its own.
_TOLD = {
    "queue": "every queue of the app",
    "nats_credentials": "none",
    "coroutines": "as in the code, else 1",
    "prefetch": "as in the code, else coroutines",
    "max_takeovers": "as in the code, else 10",
    "commit_timeout_seconds": "as in the code, else 300",
}
#: What every command needs that talks to a broker.
BROKER_FIELDS = ("broker_url", "namespace", "nats_credentials")
#: Seconds that a command for people waits for a broker's answer.
PATIENCE = 5.0
ALL_FIELDS = tuple(variable.field for variable in VARIABLES)


class Failure(click.ClickException):
    """One line on standard error and an exit code; no traceback."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """What click ends the process with."""
        return self.code


def setting_options(fields: Collection[str]) -> Callable[[Command], Command]:
    """Add one option for each named setting, with its documented help."""

    def decorate(command: Command) -> Command:
        for variable in reversed([v for v in VARIABLES if v.field in fields]):
            command = click.option(
                flag_of(variable),
                variable.field,
                callback=_parser(variable),
                metavar="VALUE",
                help=f"{variable.help[0].upper()}{variable.help[1:]}. "
                f"[{variable.name}; default: {default_of(variable.field)}]",
            )(command)
        return command

    return decorate


class Seconds(click.FloatRange):
    """A number of seconds. `inf` and `nan` are none, and `nan` passes every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


def in_utf8(_: click.Context, __: click.Parameter, text: str) -> str:
    """Callback of a text that goes to the broker: a shell passes on any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{text!r} is not UTF-8; give it in UTF-8.") from None
    return text


def default_of(field: str) -> str:
    """The default of a setting, for people. Durations are in seconds."""
    value = _DEFAULTS[field]
    return _TOLD.get(field) or (f"{value:g}" if isinstance(value, float) else str(value))


def flag_of(variable: Variable) -> str:
    return "--" + variable.field.replace("_", "-")


def _parser(variable: Variable) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def parse(_: click.Context, __: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return variable.parse(text)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} cannot be used: {error}.") from None

    return parse


def read_settings(flags: dict[str, Any]) -> tuple[Settings, tuple[str, ...]]:
    """The settings, and which of them a flag or a variable gave. Ends the command when one is bad."""
    try:
        settings = settings_from(**flags)
    except SettingsError as error:
        raise Failure(str(error), exits.BAD_USAGE) from None
    given = [
        variable.field
        for variable in VARIABLES
        if flags.get(variable.field) is not None or os.environ.get(variable.name)
    ]
    return settings, tuple(given)


@contextmanager
def broker_errors(context: str = "") -> Iterator[None]:
    """Turn a broker's error into one line and the exit code for it. `context` is a sentence about what
    happened before it."""
    try:
        yield
    except BrokerUsageError as error:
        raise Failure(str(error), exits.BAD_USAGE) from None
    except PayloadRefusedError as error:
        raise Failure(_with_context(error, context), exits.BAD_USAGE) from None
    except BrokerError as error:
        raise Failure(_with_context(error, context), exits.BROKER) from None


def _with_context(error: BrokerError, context: str) -> str:
    return f"{str(error).removesuffix('.')}. {context}" if context else str(error)
