"""Events on a QueueWorker: once for each transition, also over restarts. They inform; losing one stops
nothing.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import UTC, datetime

from queueworker_operator.api.names import FIELD_MANAGER, GROUP_VERSION, KIND
from queueworker_operator.api.types import Metadata
from queueworker_operator.apiserver import (
    AlreadyExistsError,
    ApiError,
    ApiServer,
    Body,
    UnavailableError,
    events,
)
from queueworker_operator.plan.actions import EmitEvent

log = logging.getLogger(__name__)

#: What the API takes.
_NOTE_LENGTH = 1024


async def post(api: ApiServer, owner: Metadata, event: EmitEvent, instance: str, now: datetime) -> None:
    """Post one event under a name that follows from its transition: a second one is refused as known."""
    try:
        await api.create(events(owner.namespace), _body(owner, event, instance, now))
    except AlreadyExistsError:
        return
    except (ApiError, UnavailableError) as error:
        # A namespace that is going takes no new objects, and nobody is left to read them there.
        level = logging.DEBUG if "being terminated" in str(error) else logging.WARNING
        log.log(level, "an event was not posted", extra={"queueworker": owner.name, "error": str(error)})


def _body(owner: Metadata, event: EmitEvent, instance: str, now: datetime) -> Body:
    digest = hashlib.sha256(f"{owner.uid}/{event.reason}/{event.key}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{owner.name}.{digest}", "namespace": owner.namespace},
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": FIELD_MANAGER,
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": event.reason.value,
        "type": event.type,
        "note": event.message[:_NOTE_LENGTH],
        "regarding": {
            "apiVersion": GROUP_VERSION,
            "kind": KIND,
            "name": owner.name,
            "namespace": owner.namespace,
            "uid": owner.uid,
        },
    }
