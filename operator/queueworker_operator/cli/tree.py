"""A QueueWorker as a tree: conditions that matter, revisions, their pods."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from queueworker_operator.api.gates import Verdict, newest
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import RevisionStatus
from queueworker_operator.cli.seen import Seen
from queueworker_operator.cli.verdict import Answer, verdict
from queueworker_operator.plan.revoked import told_unknown, unknown_revoked

_COLOURS = {Answer.SETTLED: "green", Answer.MOVING: "cyan", Answer.WAITING: "yellow", Answer.BLOCKED: "red"}
_GATES = {Verdict.PASSED: "green", Verdict.WAIVED: "yellow", Verdict.INCONCLUSIVE: "yellow"}
_STATES = {"ready": "green", "starting": "cyan", "stopping": "yellow"}


def forest(seen: Sequence[Seen]) -> RenderableType:
    """All of them, or a line that says that there is none."""
    return Group(*(tree(one) for one in seen)) if seen else Text("no QueueWorkers")


def tree(seen: Seen) -> Tree:
    found = verdict(seen)
    head = Text(seen.title, style="bold")
    head.append(f"  {found.answer.value}", style=f"not bold {_COLOURS[found.answer]}")
    head.append(f"  {found.reason}", style="not bold")
    grown = Tree(head)
    rollout = seen.status.rollout
    stage = rollout.stage if rollout else Stage.IDLE
    to = rollout.target if rollout and stage is not Stage.IDLE else None
    where = f"stage {stage}" + (f" to {to}" if to else "")
    if rollout and rollout.step:
        where += f", step {rollout.step}, attempt {rollout.attempt}"
        # Together they are too long for a line of 80 characters.
        grown.add(Text(f"queue {seen.queue}"))
    elif seen.queue:
        where = f"queue {seen.queue}, {where}"
    grown.add(Text(where + (", is being deleted" if seen.deleting else "")))
    grown.add(Text(found.message))
    if ignored := seen.status.request_ignored:
        text = f"request {seen.status.handled_request} was ignored: {ignored}"
        grown.add(Text(text, style="yellow"))
    if unknown := unknown_revoked(seen.status):
        grown.add(Text(told_unknown(unknown, seen.status), style="yellow"))
    for one in found.besides:
        if one.message != found.message:
            grown.add(Text(f"{one.type} is {one.status}: {one.reason}", style="yellow"))
    stable = seen.status.stable.revision if seen.status.stable else None
    if others := [name for name in seen.status.kept if name != stable]:
        grown.add(Text(f"kept to go back to: {', '.join(others)}", style="dim"))
    for revision in seen.status.revisions:
        branch = grown.add(_revision(revision))
        for member in seen.members.get(revision.name, ()):
            line = Text(member.name)
            line.append(f"  {member.state}", style=_STATES.get(member.state, "red"))
            if member.restarts:
                line.append(f"  {member.restarts} restarts", style="yellow")
            branch.add(line)
    if judged := newest(seen.status.gates):
        branch = grown.add(Text(f"gates at step {judged[0].step}, {judged[0].revision}"))
        for gate in judged:
            line = Text(f"{gate.type}  ")
            line.append(gate.verdict.value, style=_GATES.get(gate.verdict, "red"))
            line.append(f"  {gate.message}")
            branch.add(line)
    return grown


def _revision(revision: RevisionStatus) -> Text:
    line = Text(f"{revision.name}  ")
    line.append(revision.role.value, style="bold")
    line.append(f"  {revision.ready_replicas}/{revision.replicas} ready")
    if revision.coroutines is not None:
        line.append(f", {revision.coroutines} coroutines")
    line.append(f", prefetch {revision.prefetch}")
    if revision.restarts:
        line.append(f", {revision.restarts} restarts", style="yellow")
    return line
