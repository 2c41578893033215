"""Exit codes of `queueworker run` and of commands that answer by one; docs/exit-codes.md explains them."""

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
#: `verify-empty`: something private is left, or the queue did not stay still.
NOT_EMPTY = 6
#: `explain`: the message is nowhere that was looked.
NOT_FOUND = 7
