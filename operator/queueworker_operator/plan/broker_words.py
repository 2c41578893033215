"""What the conditions about the broker and its queue say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from queueworker_operator.api.reasons import ConditionReason, ConditionType
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict, Unknown
from queueworker_operator.plan.guards import Fail, Guard, Pass, Wait

State = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Word:
    """One condition, before its time."""

    state: State
    reason: ConditionReason
    message: str


def broker_words(check: BrokerCheck | Unknown) -> dict[ConditionType, Word]:
    def words(reachable: Word, placement: Word) -> dict[ConditionType, Word]:
        return {ConditionType.BROKER_REACHABLE: reachable, ConditionType.PLACEMENT_VALID: placement}

    def not_probed(message: str) -> Word:
        return Word("Unknown", ConditionReason.NOT_PROBED, message)

    if isinstance(check, Unknown):
        word = not_probed(f"{check.reason}.")
        return words(word, word)
    reachable = Word("True", ConditionReason.REACHABLE, "The broker answers.")
    if check.refuses_writes:
        # What is in work can be finished there, so nothing waits for it.
        reachable = Word("True", ConditionReason.WRITES_REFUSED, check.refuses_writes)
    match check.verdict:
        case BrokerVerdict.REACHABLE:
            same = Word("True", ConditionReason.SAME_SLOT, "All keys share one slot.")
            return words(reachable, same if check.clustered else _NO_SLOTS)
        case BrokerVerdict.UNSAFE_PLACEMENT:
            return words(reachable, Word("False", ConditionReason.UNSAFE_PLACEMENT, check.message))
        case BrokerVerdict.QUEUE_NOT_PROVISIONED | BrokerVerdict.QUEUE_UNUSABLE:
            return words(reachable, _NO_SLOTS)
        case other:
            return words(
                Word("False", ConditionReason(other.value), check.message),
                not_probed("The placement of keys is checked once the broker answers."),
            )


_NO_SLOTS = Word("True", ConditionReason.NOT_CLUSTERED, "The broker has no slots to split keys.")


def queue_words(
    check: BrokerCheck | Unknown, old_work: Guard, counted: str = ""
) -> dict[ConditionType, Word]:
    """What only JetStream has: a queue that somebody made, and the priority subject of older workers, with
    what was `counted` there while somebody waits for it."""

    def words(queue: Word, priority: Word) -> dict[ConditionType, Word]:
        return {ConditionType.QUEUE_PROVISIONED: queue, ConditionType.PRIORITY_DRAINED: priority}

    def not_probed(what: str) -> Word:
        return Word("Unknown", ConditionReason.NOT_PROBED, what)

    unread = not_probed("The priority subject is read once the queue can be used.")
    if isinstance(check, Unknown):
        return words(not_probed(f"{check.reason}."), not_probed(f"{check.reason}."))
    match check.verdict:
        case BrokerVerdict.REACHABLE:
            priority = _priority_word(old_work, f" Read: {counted}." if counted else "")
            if check.differs:
                return words(Word("False", ConditionReason.PROVISIONED_DIFFERENTLY, check.differs), priority)
            text = "The queue is there, as the spec says."
            return words(Word("True", ConditionReason.PROVISIONED, text), priority)
        case BrokerVerdict.QUEUE_NOT_PROVISIONED | BrokerVerdict.QUEUE_UNUSABLE as refused:
            return words(Word("False", ConditionReason(refused.value), check.message), unread)
        case _:
            return words(not_probed("The queue is looked for once the broker answers."), unread)


def _priority_word(guard: Guard, counted: str) -> Word:
    match guard:
        case Pass():
            text = "Nothing is left on the priority subject of older workers."
            return Word("True", ConditionReason.PRIORITY_EMPTY, text)
        case Unknown(reason=reason):
            return Word("Unknown", ConditionReason.NOT_PROBED, f"{reason}.")
        case Wait(reason, message) | Fail(reason, message):
            return Word("False", reason, message + counted)
