"""What a queue lacks or has otherwise than the spec says, with the command that mends it. The operator makes
and changes nothing of it: an older process may still depend on what is there.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from queueworker_operator.api.nats import Nats
from queueworker_operator.api.types import QueueWorkerSpec

_USUAL_NAMESPACE = Nats.model_fields["queue_namespace"].default


def not_provisioned(spec: QueueWorkerSpec, missing: str) -> str:
    """`missing` is what was looked for and not found."""
    return f"{missing}: make it with {_command(spec)}."


def differs(spec: QueueWorkerSpec, differences: Sequence[str]) -> str:
    """Empty when there are none."""
    if not differences:
        return ""
    return (
        f"{'; '.join(differences)}. Correct spec.broker.nats.stream; or, when no worker of utopia-php/queue "
        f"4 is left, which would undo it, change the queue with {_command(spec, ' --update')}."
    )


def _command(spec: QueueWorkerSpec, more: str = "") -> str:
    nats = spec.broker.nats or Nats()
    words = f"queueworker provision {shlex.quote(spec.queue.name)}"
    needed = []
    if nats.url is not None and "@" not in nats.url:
        words += f" --broker-url {shlex.quote(nats.url)}"
    else:
        where = f"the Secret {nats.secret_ref.name}" if nats.secret_ref else "spec.broker.nats.url"
        needed.append(f"QUEUEWORKER_BROKER_URL from {where}")
    if nats.queue_namespace != _USUAL_NAMESPACE:
        words += f" --namespace {shlex.quote(nats.queue_namespace)}"
    if nats.stream:
        words += nats.stream.flags()
    if any(True for _ in nats.files()):
        needed.append("QUEUEWORKER_NATS_CREDENTIALS naming a directory with the credentials of the spec")
    return f"`{words}{more}`" + (f", with {' and '.join(needed)}" if needed else "")
