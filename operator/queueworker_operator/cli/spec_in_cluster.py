"""Read a QueueWorker of a cluster and write one field of its spec."""

from __future__ import annotations

from typing import Any

from queueworker_operator.api.names import GROUP, PLUGIN_MANAGER, PLURAL
from queueworker_operator.apiserver import (
    ApiServer,
    Body,
    ConflictError,
    NotFoundError,
    RefusedError,
    queueworkers,
)
from queueworker_operator.cli.seen import NotSeenError, of_body
from queueworker_operator.cli.wishes import Edit, Subject, also_written_by


class WrittenBetweenError(Exception):
    """Somebody else changed the spec since it was read: read it again and decide anew."""


class ForbiddenError(Exception):
    """A right is missing. The text names it."""


class SpecInCluster:
    """The spec of one QueueWorker."""

    def __init__(self, api: ApiServer, namespace: str, name: str) -> None:
        self._api, self._namespace, self._name = api, namespace, name

    async def read(self) -> Subject:
        """Raises NotSeenError, ForbiddenError."""
        try:
            body = await self._api.get(queueworkers(self._namespace, self._name))
        except NotFoundError:
            raise NotSeenError(
                f"there is no QueueWorker {self._name} in namespace {self._namespace}; see kubectl "
                "queueworker get -A"
            ) from None
        except RefusedError as error:
            raise self._explained(error, "get") from None
        seen = of_body(body)
        return Subject(seen, body, seen.status.observed_generation == seen.generation)

    async def write(self, subject: Subject, edit: Edit, *, dry_run: bool) -> dict[str, Any]:
        """Patch it if nobody changed the spec since `subject` was read. Returns what was sent; with `dry_run`
        the API server checks it and keeps nothing. Raises WrittenBetweenError, ForbiddenError."""
        operations = patch(subject, edit)
        path = queueworkers(self._namespace, self._name)
        try:
            await self._api.json_patch(path, operations, manager=PLUGIN_MANAGER, dry_run=dry_run)
        except ConflictError:
            raise WrittenBetweenError(f"{subject.seen.title} is changed by somebody else") from None
        except RefusedError as error:
            raise self._explained(error, "patch") from None
        return {"patch": operations}

    def notices(self, subject: Subject, edit: Edit) -> list[str]:
        """Who else writes the field, as GitOps appliers do."""
        managed = subject.body["metadata"].get("managedFields") or []
        others = also_written_by(managed, edit, subject.spec.get(edit.field))
        return [
            f"{edit.path} is also written by {one}, which may put it back: change it there as well"
            for one in others
        ]

    def _explained(self, error: RefusedError, right: str) -> Exception:
        if error.status != 403:
            return error
        return ForbiddenError(
            f"{error.message}. What misses is the right to {right} {PLURAL}.{GROUP} in namespace "
            f"{self._namespace} (kubectl auth can-i {right} {PLURAL}.{GROUP} -n {self._namespace}); with the "
            f"chart's rbac.aggregate the role {'view' if right == 'get' else 'edit'} has it"
        )


def patch(subject: Subject, edit: Edit) -> list[Body]:
    """A JSON patch that fails when the spec is another one by then: its generation would be. A status that
    the operator writes meanwhile does not matter."""
    metadata, path = subject.body["metadata"], f"/spec/{edit.field}"
    change: Body = {"op": "add", "path": path, "value": edit.value}
    if edit.value is None:
        change = {"op": "remove", "path": path}
    return [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        {"op": "test", "path": "/metadata/generation", "value": metadata["generation"]},
        change,
    ]
