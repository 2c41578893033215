"""Whether a process can be made of a pod template."""

from __future__ import annotations

from collections.abc import Mapping

from queueworker_operator.act.launch import TemplateRefusedError
from queueworker_operator.act.processes import Host, ProcessGroup
from queueworker_operator.api.revisions import revision_of
from queueworker_operator.api.types import QueueWorker


def refusal_of(resource: QueueWorker, secrets: Mapping[str, Mapping[str, str]], host: Host) -> str:
    """Why no process can be made of this resource's template; empty when one can."""
    try:
        ProcessGroup(revision_of(resource.metadata.name, resource.spec), "", secrets, "default", 0.0, host)
    except TemplateRefusedError as refusal:
        return str(refusal)
    return ""
