"""What a worker makes of a fence on its revision: it is noted where others read it, and said once."""

from __future__ import annotations

import logging

from worker_runtime.state import QueueState

log = logging.getLogger("queueworker.worker")


def note_fence(state: QueueState, reason: str) -> None:
    """`reason` is empty where there is none. Called on either thread: by each receive, and by the renewal of
    a worker that makes none. Should both be at it at once, the next receive has the last word."""
    if reason == state.fence:
        return
    state.fence = reason
    if reason:
        log.warning("fenced, receives nothing: %s", reason, extra={"queue": state.queue})
    else:
        log.info("fence lifted, receives again", extra={"queue": state.queue})
