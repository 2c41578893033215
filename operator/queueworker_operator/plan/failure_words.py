"""Why workers are missing, and what a person can do when a change does not get further."""

from __future__ import annotations

from collections.abc import Iterator

from queueworker_operator.plan.facts import BrokerCheck, RevisionFacts
from queueworker_operator.plan.split import serving
from queueworker_operator.plan.view import View


def failure(view: View) -> str:
    """What the workers that matter most report: those that are to come, else any other's."""
    failures = [r.failure for r in _short_of_workers(view) if r.failure]
    return f"{failures[0].reason}: {failures[0].message}" if failures else ""


def trouble(view: View) -> str:
    """The same; where they report nothing, how often they were started again, and how the last one ended. And
    that the broker takes no writes. Empty when no worker is missing, or nothing is known of why."""
    short = list(_short_of_workers(view))
    if not short:
        return ""
    fallen = next((f"Workers of {r.name} {r.restarts.told}" for r in short if r.restarts is not None), "")
    refuses = view.broker.refuses_writes if isinstance(view.broker, BrokerCheck) else ""
    return " ".join(text for text in (refuses, failure(view) or fallen) if text)


def remedy(view: View) -> str:
    """What ends a lack of progress, as the end of a sentence; empty where nobody but time does."""
    stable, target = view.stable, view.target
    if stable is not None and stable.revision != target:
        back = "Retry" if view.rolled_back else "Abort"
        return f": correct the spec, or request {back}."
    name, wanted = view.comes
    if sum(serving(r) for r in view.revisions if r.name == name) >= wanted:
        return "."
    asked = view.rolled_back.asked if view.rolled_back else view.aborted
    others = [one for one in view.kept if one not in (target, asked)]
    if not others:
        return ": correct the spec."
    to = view.previous if view.previous in others else others[0]
    return f": correct the spec, or request Rollback to {to}."


def _short_of_workers(view: View) -> Iterator[RevisionFacts]:
    rows = sorted(view.revisions, key=lambda r: (r.name != view.comes[0], r.name))
    return (r for r in rows if serving(r) < r.desired)
