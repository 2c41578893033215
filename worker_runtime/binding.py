"""How a handler's parameters are filled: read once from its annotations when the job is registered.

The first parameter that is no Message, Context or Commit is the payload. Every other one names a resource
of the app. A keyword-only parameter is always a resource (or a Message or Context).
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter

from worker_runtime.brokers.base import Delivery
from worker_runtime.deferred import Commit
from worker_runtime.message import Context, Message


class RegistrationError(ValueError):
    """A job or a hook cannot be registered as written. The text names it and says what to change."""


#: Makes the positional arguments of one call. Whatever it raises means: the payload does not fit.
Prepare = Callable[[Delivery, Context | None], tuple[Any, ...]]


def name_of(function: Callable[..., Any]) -> str:
    """Where to find a function: module and qualified name."""
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def type_hints(function: Callable[..., Any], name: str, localns: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve annotations, also those that name classes of the function that registers the handler."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(inspect.unwrap(target), localns=dict(localns))
    except NameError as error:
        raise RegistrationError(
            f"{name}: the annotation {error.name!r} is not defined where the function is registered. "
            "Import it at run time, not only under TYPE_CHECKING."
        ) from None


@dataclass(frozen=True, slots=True)
class Binding:
    """What each parameter of a handler gets, in calling order."""

    handler: Callable[..., Any]
    #: (parameter, source) with source "payload", "message", "context", "commit" or "resource"
    positional: tuple[tuple[str, str], ...]
    keywords: tuple[tuple[str, str], ...]
    optional: frozenset[str]
    #: Turns raw JSON into the payload parameter's type; raises when it does not fit.
    decode: Callable[[bytes], Any]
    payload_type: str

    @property
    def needs_context(self) -> bool:
        return any(source in ("context", "commit") for _, source in (*self.positional, *self.keywords))

    @property
    def needs_commit(self) -> bool:
        return any(source == "commit" for _, source in (*self.positional, *self.keywords))

    def resolve(self, resources: Mapping[str, Any]) -> tuple[Prepare, Callable[..., Any]]:
        """Fix the resources, once per process. Returns what prepares the arguments and what takes them.
        Raises RegistrationError naming a resource that the app does not have."""
        positional = [p for p in self.positional if not self._absent(p, resources)]
        skipped = len(self.positional) - len(positional)
        keywords = [p for p in self.keywords if not self._absent(p, resources)]
        if skipped:  # a default in the middle: whatever follows must go by name
            keywords = [*positional[1:], *keywords]
            positional = positional[:1]
        makers = [self._maker(parameter, source, resources) for parameter, source in (*positional, *keywords)]
        names = [parameter for parameter, _ in keywords]
        count = len(positional)
        handler = self.handler
        if names:

            def call(*arguments: Any) -> Any:
                return handler(*arguments[:count], **dict(zip(names, arguments[count:], strict=True)))

        else:
            call = handler
        sources = [source for _, source in (*positional, *keywords)]
        if sources == ["payload"]:
            decode = self.decode
            return (lambda delivery, context: (decode(delivery.payload),)), call
        return (lambda delivery, context: tuple([make(delivery, context) for make in makers])), call

    def _absent(self, parameter: tuple[str, str], resources: Mapping[str, Any]) -> bool:
        name, source = parameter
        return source == "resource" and name in self.optional and name not in resources

    def _maker(
        self, parameter: str, source: str, resources: Mapping[str, Any]
    ) -> Callable[[Delivery, Context | None], Any]:
        if source == "payload":
            decode = self.decode
            return lambda delivery, context: decode(delivery.payload)
        if source == "message":
            return lambda delivery, context: context.message if context else Message.of(delivery)
        if source == "context":
            return lambda delivery, context: context
        if source == "commit":
            return lambda delivery, context: context.commit if context else None
        if parameter not in resources:
            raise RegistrationError(
                f"{name_of(self.handler)} asks for the resource {parameter!r}, but the app has "
                f"{sorted(resources) or 'none'}. Set app.resources[{parameter!r}], for example in a hook "
                "registered with @app.on_worker_start."
            )
        resource = resources[parameter]
        return lambda delivery, context: resource


def bind(handler: Callable[..., Any], localns: Mapping[str, Any]) -> Binding:
    """Read a handler's parameters. Raises RegistrationError when one cannot be filled."""
    name = name_of(handler)
    hints = type_hints(handler, name, localns)
    positional: list[tuple[str, str]] = []
    keywords: list[tuple[str, str]] = []
    optional: set[str] = set()
    payload: Any = None
    has_payload = False
    for parameter in inspect.signature(handler).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RegistrationError(
                f"{name}: parameter {parameter} cannot be filled; name each parameter that you need."
            )
        annotation = hints.get(parameter.name, Any)
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        if annotation is Message:
            source = "message"
        elif annotation is Context:
            source = "context"
        elif annotation is Commit:
            source = "commit"
        elif not has_payload and not keyword_only:
            source, payload, has_payload = "payload", annotation, True
        else:
            source = "resource"
            if parameter.default is not parameter.empty:
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    raise RegistrationError(
                        f"{name}: the positional-only parameter {parameter.name!r} cannot be left out; "
                        "remove its default or the '/'."
                    )
                optional.add(parameter.name)
        (keywords if keyword_only else positional).append((parameter.name, source))
    decode = decoder(payload, name) if has_payload else msgspec.json.decode
    shown = getattr(payload, "__name__", str(payload)) if has_payload else "nothing"
    return Binding(handler, tuple(positional), tuple(keywords), frozenset(optional), decode, shown)


def decoder(annotation: Any, name: str) -> Callable[[bytes], Any]:
    """The fastest parser that yields this type from raw JSON."""
    if annotation is bytes:
        return bytes
    if annotation is Any or annotation is object or annotation is inspect.Parameter.empty:
        return msgspec.json.Decoder().decode
    try:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation.model_validate_json
        if _mentions_pydantic(annotation, set()):
            return TypeAdapter(annotation).validate_json
        return msgspec.json.Decoder(annotation).decode
    except Exception as error:
        raise RegistrationError(
            f"{name}: a payload of type {annotation} cannot be read from JSON: {error}. Use a pydantic "
            "model, a TypedDict, a dataclass, a msgspec.Struct, dict, Any, or bytes for the raw JSON."
        ) from error


def _mentions_pydantic(annotation: Any, seen: set[int]) -> bool:
    if id(annotation) in seen:
        return False
    seen.add(id(annotation))
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or hasattr(annotation, "__pydantic_validator__")
    ):
        return True
    nested: list[Any] = list(typing.get_args(annotation))
    if dataclasses.is_dataclass(annotation) or typing.is_typeddict(annotation):
        nested.extend(typing.get_type_hints(annotation).values())
    return any(_mentions_pydantic(each, seen) for each in nested)
