"""QueueWorker's runtime: consume queues with bounded prefetch, and publish to them."""

from __future__ import annotations

from worker_runtime.app import App
from worker_runtime.binding import RegistrationError
from worker_runtime.brokers.base import Timing
from worker_runtime.message import Context, Message

__version__ = "0.1.0"

__all__ = ["App", "Context", "Message", "RegistrationError", "Timing", "__version__"]
