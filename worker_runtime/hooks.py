"""Functions that run around handlers and around the life of a worker process.

Order for one message: init hooks, the handler, shutdown hooks, the broker's confirmation, success hooks.
An exception anywhere before the confirmation runs the error hooks and rejects the message.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from worker_runtime.binding import RegistrationError, name_of, type_hints
from worker_runtime.message import Context, Message

#: A hook in this group runs for every job.
EVERY_GROUP = "*"


class HookKind(Enum):
    #: Before each handler; an exception rejects the message without running the handler.
    INIT = "init"
    #: After each handler that returned, before its message is committed; an exception rejects the message.
    SHUTDOWN = "shutdown"
    #: After the broker has confirmed the commit of that very message. Never for an unknown outcome.
    SUCCESS = "success"
    #: After an init hook, a handler or a shutdown hook raised.
    ERROR = "error"
    #: Once in each worker process, before the first message; an exception stops the worker with exit code 1.
    WORKER_START = "worker_start"
    #: Once in each worker process, after the last settlement.
    WORKER_STOP = "worker_stop"


#: Kinds that run for one message, and so may ask for it.
_PER_MESSAGE = frozenset({HookKind.INIT, HookKind.SHUTDOWN, HookKind.SUCCESS, HookKind.ERROR})


@dataclass(frozen=True, slots=True)
class Hook:
    kind: HookKind
    name: str
    function: Callable[..., Any]
    groups: frozenset[str]
    #: parameter name -> "message", "context", "error" or "resource"
    sources: Mapping[str, str]
    #: Resource parameters that have a default, and so may be absent from the app.
    optional: frozenset[str]

    def covers(self, groups: Iterable[str]) -> bool:
        """Whether it runs for a job of these groups."""
        return EVERY_GROUP in self.groups or not self.groups.isdisjoint(groups)

    async def run(
        self,
        resources: Mapping[str, Any],
        context: Context | None = None,
        error: BaseException | None = None,
    ) -> None:
        arguments: dict[str, Any] = {}
        for parameter, source in self.sources.items():
            if source == "resource":
                if parameter in resources:
                    arguments[parameter] = resources[parameter]
                elif parameter not in self.optional:
                    raise RegistrationError(
                        f"hook {self.name} asks for the resource {parameter!r}, but the app has "
                        f"{sorted(resources) or 'none'}. Set app.resources[{parameter!r}] before it runs."
                    )
            elif source == "context":
                arguments[parameter] = context
            elif source == "message":
                arguments[parameter] = context.message if context else None
            else:
                arguments[parameter] = error
        result = self.function(**arguments)
        if inspect.isawaitable(result):
            await _finish(result)


async def _finish(result: Awaitable[Any]) -> None:
    await result


def make_hook(
    kind: HookKind, function: Callable[..., Any], groups: Iterable[str], localns: Mapping[str, Any]
) -> Hook:
    """Read a hook's parameters once. Raises RegistrationError when one cannot be served."""
    name = name_of(function)
    chosen = frozenset([groups] if isinstance(groups, str) else groups) or frozenset({EVERY_GROUP})
    hints = type_hints(function, name, localns)
    sources: dict[str, str] = {}
    optional: set[str] = set()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RegistrationError(
                f"hook {name}: parameter {parameter} cannot be filled; name each parameter and annotate it "
                "as Message, Context or an exception, or name a resource of the app."
            )
        annotation = hints.get(parameter.name)
        if annotation is Message or annotation is Context:
            source = "message" if annotation is Message else "context"
            if kind not in _PER_MESSAGE:
                raise RegistrationError(
                    f"hook {name}: {kind.value} runs once for a process and has no message; "
                    f"remove the parameter {parameter.name!r}."
                )
        elif isinstance(annotation, type) and issubclass(annotation, BaseException):
            source = "error"
            if kind is not HookKind.ERROR:
                raise RegistrationError(
                    f"hook {name}: only an error hook gets an exception; remove {parameter.name!r}."
                )
        else:
            source = "resource"
            if parameter.default is not parameter.empty:
                optional.add(parameter.name)
        sources[parameter.name] = source
    return Hook(kind, name, function, chosen, sources, frozenset(optional))
