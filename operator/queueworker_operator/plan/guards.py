"""Conditions of a transition. A guard is Pass, Wait, Fail or Unknown; only Pass lets anything through.

Wait: time may heal it. Fail: somebody has to change something. Unknown: nobody could look.
"""

from __future__ import annotations

from dataclasses import dataclass

from queueworker_operator.api.reasons import ConditionReason
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.template import MANAGED_VARIABLES, worker_container
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict, Unknown, Workers


@dataclass(frozen=True, slots=True)
class Pass:
    """Proven."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now; it is tried again."""

    reason: ConditionReason
    message: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Not until somebody acts; it is still tried again."""

    reason: ConditionReason
    message: str


Guard = Pass | Wait | Fail | Unknown


def first_obstacle(*guards: Guard) -> Guard:
    """The first that is not Pass, or Pass."""
    return next((guard for guard in guards if not isinstance(guard, Pass)), Pass())


_LEFT_ALONE = "Workers that run are left alone."


def broker_guard(check: BrokerCheck | Unknown) -> Guard:
    """Whether workers may be started on this broker."""
    if isinstance(check, Unknown):
        return check
    match check.verdict:
        case BrokerVerdict.REACHABLE:
            return Pass()
        case BrokerVerdict.CONNECTION_FAILED | BrokerVerdict.TIMEOUT:
            return Wait(ConditionReason.BROKER_UNREACHABLE, f"{_sentence(check.message)} {_LEFT_ALONE}")
        case refused:
            return Fail(ConditionReason(refused.value), f"{_sentence(check.message)} {_LEFT_ALONE}")


def _sentence(text: str) -> str:
    """What was observed, ended so that another sentence can follow."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def creation_guard(target: Revision, workers: Workers) -> Pass | Fail:
    """Whether it makes sense to try to create the target."""
    for existing in workers.revisions:
        if existing.deployment == target.deployment and existing.conflict:
            return Fail(
                ConditionReason.NAME_CONFLICT,
                f"{target.deployment} belongs to somebody else: {existing.conflict} "
                "Delete or rename it, or rename this QueueWorker.",
            )
    container = worker_container(target.template)
    given = {entry.get("name") for entry in container.get("env") or () if isinstance(entry, dict)}
    managed = sorted(name for name in given if name in MANAGED_VARIABLES)
    if managed:
        return Fail(
            ConditionReason.INVALID_TEMPLATE,
            f"container {container['name']} sets {', '.join(managed)}, which the operator sets from spec: "
            f"remove it from spec.template. {_LEFT_ALONE}",
        )
    return Pass()


def refusal_guard(target: Revision, workers: Workers) -> Pass | Fail:
    """Whether the last try to create the target was refused. It is tried again in each pass all the same:
    quotas and admission policies change without a change of the resource."""
    for refusal in workers.refusals:
        if refusal.revision == target.name:
            return Fail(
                ConditionReason.INVALID_TEMPLATE,
                f"{target.deployment} was refused: {_sentence(refusal.message)} Correct spec.template. "
                f"{_LEFT_ALONE}",
            )
    return Pass()
