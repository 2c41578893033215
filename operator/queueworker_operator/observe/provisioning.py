"""What a queue lacks or has otherwise than the spec says, with the command that mends it. The operator makes
and changes nothing of it: an older process may still depend on what is there.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from queueworker_operator.api.nats import Nats
from queueworker_operator.api.types import QueueWorkerSpec
from worker_runtime.brokers.base import TakenBackTooSoonError

_USUAL_NAMESPACE = Nats.model_fields["queue_namespace"].default


@dataclass(frozen=True, slots=True)
class Source:
    """Where local mode has the broker from, where it is not the spec."""

    #: Of --broker, which wins over the URL, the Secret and the credentials of the spec.
    flag: str = ""
    #: Started by `queueworker up` itself, which makes the queue as the spec says, again after each edit.
    embedded: bool = False


OF_THE_SPEC = Source()


def not_provisioned(spec: QueueWorkerSpec, missing: str, source: Source = OF_THE_SPEC) -> str:
    """`missing` is what was looked for and not found."""
    return f"{missing}: make it with {_command(spec, source)}."


def taken_back_too_soon(
    spec: QueueWorkerSpec, error: TakenBackTooSoonError, source: Source = OF_THE_SPEC
) -> str:
    """The ack wait is shorter than the workers' renewal period. Mended at either end."""
    nats = spec.broker.nats or Nats()
    wanted = math.ceil(error.expiry)
    expiry = (
        f"{error.found}: set QUEUEWORKER_EXPIRY_SECONDS in the env of the container to {error.wait:g} or less"
    )
    if source.embedded:
        return f"{expiry}, or spec.broker.nats.stream.ackWaitSeconds to {wanted} or more."
    named = (
        " spec.broker.nats.stream.ackWaitSeconds and" if nats.stream and nats.stream.ack_wait_seconds else ""
    )
    longer = f" --ack-wait {wanted} --update"
    return (
        f"{expiry}; or, when no worker of utopia-php/queue 4 is left, which would undo it, raise{named} the"
        f" ack wait of the queue to {wanted} with {_command(spec, source, longer, leave_out=('ack_wait',))}."
    )


def differs(spec: QueueWorkerSpec, differences: Sequence[str], source: Source = OF_THE_SPEC) -> str:
    """Empty when there are none."""
    if not differences:
        return ""
    return (
        f"{'; '.join(differences)}. Correct spec.broker.nats.stream; or, when no worker of utopia-php/queue "
        f"4 is left, which would undo it, change the queue with {_command(spec, source, ' --update')}."
    )


def _command(spec: QueueWorkerSpec, source: Source, more: str = "", leave_out: Sequence[str] = ()) -> str:
    nats = spec.broker.nats or Nats()
    words = f"queueworker provision {shlex.quote(spec.queue.name)}"
    needed = []
    url = source.flag or nats.url
    if url and "@" not in url:
        words += f" --broker-url {shlex.quote(url)}"
    elif source.flag:
        needed.append("QUEUEWORKER_BROKER_URL as given to --broker")
    else:
        where = f"the Secret {nats.secret_ref.name}" if nats.secret_ref else "spec.broker.nats.url"
        needed.append(f"QUEUEWORKER_BROKER_URL from {where}")
    if nats.queue_namespace != _USUAL_NAMESPACE:
        words += f" --namespace {shlex.quote(nats.queue_namespace)}"
    if nats.stream:
        words += nats.stream.flags(leave_out)
    if not source.flag and any(True for _ in nats.files()):
        needed.append("QUEUEWORKER_NATS_CREDENTIALS naming a directory with the credentials of the spec")
    return f"`{words}{more}`" + (f", with {' and '.join(needed)}" if needed else "")
