"""Wait until what was asked for is answered, and the change is at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from queueworker_operator.apiserver import UnavailableError
from queueworker_operator.cli.seen import NotSeenError
from queueworker_operator.cli.verdict import Answer, Verdict, verdict
from queueworker_operator.cli.wishes import Subject, Wish, rests_as_asked
from queueworker_operator.run.local_file import BadFileError

#: Seconds between two looks.
PERIOD = 0.5
#: What a verb ends with.
AS_ASKED, TIMED_OUT, BLOCKED, NOBODY_ACTS, NOT_DONE = 0, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    text: str
    #: Where it stands, if it was seen.
    found: Verdict | None = None


async def follow(
    read: Callable[[], Awaitable[Subject]], wish: Wish, seconds: float, tell: Callable[[str], None]
) -> Outcome:
    """Look until the status is about what was written, the request is answered, and nothing moves or waits
    any more but for a person; or until `seconds` are over. A reading that fails is tried again. What is
    waited for is told whenever it is another thing."""
    outcome: Outcome | str = "nothing was seen"
    told = ""
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    outcome = _judge(await read(), wish)
                except NotSeenError as error:
                    outcome = Outcome(NOT_DONE, f"it went away meanwhile: {error}")
                except (UnavailableError, BadFileError) as error:
                    outcome = str(error)
                if isinstance(outcome, Outcome):
                    return outcome
                if outcome != told:
                    told = outcome
                    tell(told)
                await asyncio.sleep(PERIOD)
    except TimeoutError:
        return Outcome(TIMED_OUT, f"not at rest after {seconds:g} s: {outcome}")


def _judge(subject: Subject, wish: Wish) -> Outcome | str:
    """The outcome, or why it is to be looked at again."""
    seen, status = subject.seen, subject.seen.status
    if seen.deleting:
        return Outcome(NOT_DONE, "it is being deleted")
    found = verdict(seen)
    if seen.abandoned:
        return Outcome(NOBODY_ACTS, f"{found.message} It reads then what was written.", found)
    if wish.request is not None:
        if status.handled_request != wish.id:
            if subject.request_id != wish.id:
                return Outcome(NOT_DONE, f"request {subject.request_id or 'none'} is in its place now", found)
            return f"request {wish.id} is not answered. {found.message}"
        if status.request_ignored:
            return Outcome(NOT_DONE, f"request {wish.id} was ignored: {status.request_ignored}", found)
    text = f"{found.answer.value} ({found.reason}): {found.message}"
    if not subject.current or found.answer in (Answer.MOVING, Answer.WAITING):
        return text
    if found.answer is Answer.BLOCKED and not rests_as_asked(wish.verb, found.reason):
        return Outcome(BLOCKED, text, found)
    if found.answer is Answer.BLOCKED:
        text = f"done ({found.reason}): {found.message}"
    return Outcome(AS_ASKED, text, found)
