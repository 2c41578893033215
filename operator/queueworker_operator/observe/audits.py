"""The Job that counts totals for an analysis: whether it can be made, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from queueworker_operator.api.audits import AuditJob, BadAnswerError, audit_container, read_totals
from queueworker_operator.api.gates import AnalysisStatus
from queueworker_operator.api.sentences import inside
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.apiserver import ApiServer, Body, RefusedError, jobs, pods
from queueworker_operator.observe.masks import NOTHING, Mask, mask_of
from queueworker_operator.observe.queries import QueryAudits, ReadFiles
from queueworker_operator.observe.secrets import secret_files
from queueworker_operator.plan.actions import StartAudit
from queueworker_operator.plan.audit import (
    NOT_AUDITED,
    AuditAbsent,
    AuditAnswered,
    AuditBroken,
    AuditFact,
    AuditRefused,
    AuditRuns,
)

#: Renders the Job of an action, ready to be created.
RenderAudit = Callable[[StartAudit], Body]


@dataclass(frozen=True, slots=True)
class ByJob:
    """An analysis that has no verdict yet, and the Job that counts its totals."""

    analysis: AnalysisStatus
    job: AuditJob


class JobAudits:
    """What is remembered between passes: which Jobs can be made, and which could not; and what a Prometheus
    said that is asked instead. `clock` gives aware times. `close` ends what is under way."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._queries = QueryAudits(clock)
        #: By resource: the analysis whose Job was accepted when it was tried out.
        self._accepted: dict[str, tuple[datetime, str]] = {}
        #: By resource: a Job that was refused in earnest, and why.
        self._refused: dict[str, tuple[str, str]] = {}

    async def latest(self, api: ApiServer, resource: QueueWorker, render: RenderAudit) -> AuditFact:
        """What is known of the one that the status names, or whether there can be one. Raises
        UnavailableError, ApiError."""
        namespace = resource.metadata.namespace
        key = f"{namespace}/{resource.metadata.name}"
        told = await known_or_job(self._queries, key, resource, partial(secret_files, api, namespace))
        if not isinstance(told, ByJob):
            self._forget_job(key)
            return told
        analysis = told.analysis
        if analysis.audit is not None:
            return await self._found(api, resource, analysis.audit.name)
        mark = analysis.began_at, analysis.settings
        if self._accepted.get(key) != mark:
            tried = StartAudit(f"{resource.metadata.name}-audit", told.job, {})
            try:
                await api.create(jobs(resource.metadata.namespace), render(tried), dry_run=True)
            except RefusedError as error:
                return AuditRefused(f"the API server says: {error.message}")
            self._accepted[key] = mark
        return NOT_AUDITED

    def refused(self, namespace: str, resource: str, name: str, message: str) -> None:
        """The API server did not create it, although it had accepted one like it."""
        self._refused[f"{namespace}/{resource}"] = name, message

    def forget(self, key: str) -> None:
        """Its analysis is over, or it is gone. `key` is `<namespace>/<name>`."""
        self._forget_job(key)
        self._queries.forget(key)

    def _forget_job(self, key: str) -> None:
        self._accepted.pop(key, None)
        self._refused.pop(key, None)

    async def close(self) -> None:
        """End what is under way."""
        await self._queries.close()

    async def _found(self, api: ApiServer, resource: QueueWorker, name: str) -> AuditFact:
        metadata = resource.metadata
        refused_name, why = self._refused.get(f"{metadata.namespace}/{metadata.name}", ("", ""))
        if refused_name == name:
            return AuditBroken(name, f"is refused by the API server: {why}")
        try:
            body = await api.find(jobs(metadata.namespace, name))
        except RefusedError as error:
            return AuditBroken(name, f"cannot be read, says the API server: {error.message}")
        if body is None:
            return AuditAbsent(name)
        if not is_ours(body, metadata.uid):
            return AuditBroken(name, "belongs to somebody else: remove it, or rename it")
        if not _is_over(body):
            return AuditRuns(name)
        of_it = [pod async for pod in api.each(pods(metadata.namespace), f"job-name={name}")]
        mask = await mask_of(api, metadata.namespace, body["spec"]["template"])
        return job_fact(body, of_it, mask)


async def known_or_job(
    queries: QueryAudits, key: str, resource: QueueWorker, read: ReadFiles
) -> AuditFact | ByJob:
    """What is known where nobody counts, or a Prometheus; else the Job that does. `key` names the resource,
    `read` gives what Secrets hold or what is wrong with them. Raises what that raises."""
    rollout = resource.status.rollout
    analysis = rollout.analysis if rollout else None
    gate = next((one for one in resource.spec.gates if one.audited), None)
    if analysis is None or analysis.verdict is not None or gate is None:
        queries.forget(key)
        return NOT_AUDITED
    if gate.prometheus is not None:
        return await queries.latest(key, resource, analysis, gate.prometheus, read)
    assert gate.job is not None, "only such a gate is audited"
    return ByJob(analysis, gate.job)


def is_ours(body: Body, uid: str) -> bool:
    """Whether the resource with that uid made it."""
    return any(one.get("uid") == uid for one in body["metadata"].get("ownerReferences") or ())


def _is_over(body: Body) -> bool:
    return bool(_conditions(body).keys() & {"Complete", "Failed"})


def _conditions(body: Body) -> dict[str, Body]:
    found = body.get("status", {}).get("conditions") or ()
    return {one["type"]: one for one in found if one["status"] == "True"}


def job_fact(body: Body, of_it: Sequence[Body], mask: Mask = NOTHING) -> AuditFact:
    """From a Job and its pods. What it said is told without what `mask` hides."""
    name = body["metadata"]["name"]
    if not _is_over(body):
        return AuditRuns(name)
    container = audit_container(body["spec"]["template"])["name"]
    ended = [
        one["state"]["terminated"]
        for pod in of_it
        for one in pod.get("status", {}).get("containerStatuses") or ()
        if one["name"] == container and "terminated" in one.get("state", {})
    ]
    last = ended[-1] if ended else {}
    said = str(last.get("message") or "").encode()
    failed = _conditions(body).get("Failed")
    if failed is not None and last.get("exitCode"):
        return ended_fact(name, said, f"exit code {last['exitCode']}", mask)
    if failed is not None:
        why = f"{failed.get('reason', '')}: {failed.get('message', '')}".strip(": ")
        return AuditBroken(name, f"failed ({inside(why)})")
    if not ended:
        return AuditBroken(name, "is complete, and its pod is gone with the answer")
    return ended_fact(name, said, mask=mask)


def ended_fact(name: str, said: bytes, failure: str = "", mask: Mask = NOTHING) -> AuditFact:
    """Of one that has ended: its answer, or why that is none. `failure` is how it ended, where not well. What
    it said is told without what `mask` hides."""
    if failure:
        told = f" It said: {inside(mask.told(said))}." if said.strip() else ""
        return AuditBroken(name, f"ended with {failure}.{told}")
    try:
        return AuditAnswered(name, read_totals(said, mask.told))
    except BadAnswerError as error:
        return AuditBroken(name, f"ended, but {error}")
