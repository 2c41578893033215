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
    from worker_runtime.deferred import Commit
    from worker_runtime.message import Context, Message
    from worker_runtime.retry import Retry

__version__ = "0.1.0"

__all__ = [
    "App",
    "Commit",
    "Context",
    "Message",
    "RegistrationError",
    "Retry",
    "Timing",
    "__version__",
]

_HOMES = {
    "App": "worker_runtime.app",
    "Commit": "worker_runtime.deferred",
    "Context": "worker_runtime.message",
    "Message": "worker_runtime.message",
    "RegistrationError": "worker_runtime.binding",
    "Retry": "worker_runtime.retry",
    "Timing": "worker_runtime.brokers.base",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
