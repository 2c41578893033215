"""Exit codes of `queueworker run`; docs/exit-codes.md explains them to people."""

from __future__ import annotations

#: Stopped gracefully, nothing was outstanding.
STOPPED = 0
#: A fault at run time: a job or a start hook cannot work.
FAULT = 1
#: Usage, settings or import of the app.
BAD_USAGE = 2
#: The broker refused, or the keys may not be placed as asked.
BROKER = 3
#: Work was left to be recovered: the deadline passed or the broker could not take it back.
LEFT_WORK = 4
#: A second signal ended it at once; work is left to be recovered.
FORCED = 5
