"""The actions of a plan, in words."""

from __future__ import annotations

from queueworker_operator.plan import actions as act
from tests.operator.resources import OLD, V1, V2, V3


class Names(dict[str, str]):
    """Revisions in words; an arm is its version and its prefetch, such as v2-p8."""

    def __missing__(self, name: str) -> str:
        version, _, prefetch = name.rpartition("-p")
        known = next(word for full, word in self.items() if full.startswith(f"{version}-p"))
        return f"{known}-p{prefetch}"


def steps(decided: act.Plan) -> list[str]:
    """The actions on workers and finalizers, in order, in words."""
    names = Names({V1.name: "v1", V2.name: "v2", V3.name: "v3", OLD.name: "old"})
    words = []
    for action in decided.actions:
        match action:
            case act.EnsureFinalizer():
                words.append("finalizer")
            case act.RemoveFinalizer():
                words.append("let go")
            case act.ApplyRevision(revision, replicas):
                words.append(f"create {names[revision.name]} at {replicas}")
            case act.AdoptRevision(revision, _):
                words.append(f"adopt {names[revision]}")
            case act.OrphanRevision(revision, _):
                words.append(f"orphan {names[revision]}")
            case act.ScaleRevision(revision, _, replicas):
                words.append(f"{names[revision]} to {replicas}")
            case act.RetireRevision(revision, _):
                words.append(f"{names[revision]} to 0")
            case act.DeleteRevision(revision, _):
                words.append(f"delete {names[revision]}")
            case act.KeepRevision(revision, number, _):
                words.append(f"keep {names[revision.name]} as {number}")
            case act.ForgetRevision(revision, _):
                words.append(f"forget {names[revision]}")
            case act.FenceRevision(revision, _):
                words.append(f"fence {names[revision]}")
            case act.UnfenceRevision(revision):
                words.append(f"unfence {names[revision]}")
            case act.RecoverWork():
                words.append("recover")
            case act.ReturnStaged():
                words.append("return staged")
            case act.PromoteDelayed():
                words.append("promote delayed")
            case act.StartAudit(name):
                words.append(f"audit {name}")
            case act.RemoveAudit(name):
                words.append(f"remove {name}")
            case act.EmitEvent() | act.WriteStatus():
                pass
    return words
