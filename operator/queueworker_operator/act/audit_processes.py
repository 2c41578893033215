"""Who counts totals, as a local process: the container of the Job, with its answer in a file."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from queueworker_operator.act.launch import Launch, Place, Secrets, TemplateRefusedError, audit_launch_of
from queueworker_operator.act.output import copy_output
from queueworker_operator.act.processes import Host, end_with_parent, exit_text, kill_group
from queueworker_operator.api.audits import LONGEST_ANSWER, RESULT_VARIABLE
from queueworker_operator.api.credentials import SecretFile
from queueworker_operator.api.types import InvalidQueueWorker, QueueWorker
from queueworker_operator.observe.audits import ByJob, ended_fact, known_or_job
from queueworker_operator.observe.masks import Mask, mask_of_file
from queueworker_operator.observe.queries import QueryAudits
from queueworker_operator.observe.secrets import Files, files_in
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


@dataclass(slots=True)
class _Audit:
    """One process, until it is removed."""

    fact: AuditFact
    task: asyncio.Task[None] | None = None


class LocalAudits:
    """The processes that count totals for one resource: none outlives its removal, nor us."""

    def __init__(self, host: Host, clock: Callable[[], datetime]) -> None:
        self._host, self._queries = host, QueryAudits(clock)
        self._audits: dict[str, _Audit] = {}

    async def latest(self, resource: QueueWorker | InvalidQueueWorker, secrets: Secrets) -> AuditFact:
        """What is known of the one that the status names, or whether there can be one. Never raises."""
        if not isinstance(resource, QueueWorker):
            return NOT_AUDITED

        async def read(files: Iterable[SecretFile]) -> Files | str:
            return files_in(secrets, files)

        told = await known_or_job(self._queries, resource.metadata.name, resource, read)
        if not isinstance(told, ByJob):
            return told
        audit = told.analysis.audit
        if audit is None:
            try:
                audit_launch_of(told.job.template, {}, secrets, Place("audit", "default", 0))
            except TemplateRefusedError as refusal:
                return AuditRefused(str(refusal))
            return NOT_AUDITED
        found = self._audits.get(audit.name)
        return found.fact if found else AuditAbsent(audit.name)

    def start(self, action: StartAudit, secrets: Secrets, namespace: str) -> None:
        """Once for each name."""
        if action.name not in self._audits:
            audit = self._audits[action.name] = _Audit(AuditRuns(action.name))
            audit.task = asyncio.create_task(self._run(audit, action, secrets, namespace))

    async def remove(self, name: str) -> None:
        """End it, if it runs, and forget what it said."""
        audit = self._audits.pop(name, None)
        if audit is not None and audit.task is not None:
            audit.task.cancel()
            await asyncio.gather(audit.task, return_exceptions=True)

    async def close(self) -> None:
        """End all of them."""
        for name in list(self._audits):
            await self.remove(name)
        await self._queries.close()

    async def _run(self, audit: _Audit, action: StartAudit, secrets: Secrets, namespace: str) -> None:
        name = action.name
        try:
            with tempfile.TemporaryDirectory(prefix="queueworker-audit-") as directory:
                result = Path(directory, "answer.json")
                told = {**action.variables, RESULT_VARIABLE: str(result)}
                launch = audit_launch_of(action.job.template, told, secrets, Place(name, namespace, 0))
                mask = mask_of_file(secrets, action.job.template, told.get("QUEUEWORKER_BROKER_URL", ""))
                audit.fact = await self._once(name, launch, result, action.job.timeout_seconds, mask)
        except TemplateRefusedError as refusal:
            audit.fact = AuditBroken(name, f"cannot be started: {refusal}")
        except OSError as error:
            what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            audit.fact = AuditBroken(name, f"cannot be started: {what}")
        self._host.say(name, "answered" if isinstance(audit.fact, AuditAnswered) else "gave no good answer")
        self._host.wake()

    async def _once(self, name: str, launch: Launch, result: Path, seconds: int, mask: Mask) -> AuditFact:
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                env=launch.env,
                cwd=self._host.cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._host.say(name, f"counts totals, process {process.pid}")
        log = self._host.log_dir / f"{name}.log" if self._host.log_dir else None
        output = asyncio.create_task(copy_output(reading, lambda text: self._host.show(name, text), log))
        late = False
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            late = True
        finally:
            kill_group(process.pid)
            await process.wait()
            # Something that left the group may still hold the pipe: it is not waited for.
            done, _ = await asyncio.wait({output}, timeout=2)
            output.cancel()
        if late:
            return AuditBroken(name, f"did not end within timeoutSeconds, {seconds} s, and was killed")
        raw = _answer(result)
        if process.returncode:
            said = raw or (output.result().encode() if done else b"")
            return ended_fact(name, said, exit_text(process.returncode), mask)
        return ended_fact(name, raw, mask=mask)


def _answer(result: Path) -> bytes:
    """What was written there; nothing of what is no file, such as a pipe, which would be waited for."""
    try:
        handle = os.open(result, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    with os.fdopen(handle, "rb") as file:
        return file.read(LONGEST_ANSWER) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
