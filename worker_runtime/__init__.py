"""QueueWorker's runtime: consume queues with bounded prefetch, and publish to them.

Names are loaded when they are first used: a supervisor or an operator that only wants a part of the package
does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_runtime.app import App
    from worker_runtime.binding import RegistrationError
    from worker_runtime.brokers.base import Timing
    from worker_runtime.message import Context, Message

__version__ = "0.1.0"

__all__ = ["App", "Context", "Message", "RegistrationError", "Timing", "__version__"]

_HOMES = {
    "App": "worker_runtime.app",
    "Context": "worker_runtime.message",
    "Message": "worker_runtime.message",
    "RegistrationError": "worker_runtime.binding",
    "Timing": "worker_runtime.brokers.base",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
