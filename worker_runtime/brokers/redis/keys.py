"""Names of all keys of one queue. Nothing else in the product spells a key."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class QueueKeys:
    """`namespace` and `queue` as the user gave them; on Redis Cluster one of them carries a hash tag."""

    namespace: str
    queue: str
    ready: str = field(init=False)
    processing: str = field(init=False)
    failed: str = field(init=False)
    dead: str = field(init=False)
    total: str = field(init=False)
    processing_count: str = field(init=False)
    success: str = field(init=False)
    failed_count: str = field(init=False)
    staging: str = field(init=False)
    reservations: str = field(init=False)
    owners: str = field(init=False)
    liveness: str = field(init=False)
    poison: str = field(init=False)
    delayed: str = field(init=False)
    takeovers: str = field(init=False)
    fence: str = field(init=False)
    workers: str = field(init=False)
    roster: str = field(init=False)
    ledger: str = field(init=False)
    #: A job's key is this prefix and its pid.
    job_prefix: str = field(init=False)
    #: Length of `job_prefix` in bytes, as the scripts count.
    job_prefix_length: int = field(init=False)

    def __post_init__(self) -> None:
        ns, q = self.namespace, self.queue
        names = {
            "ready": f"{ns}.queue.{q}",
            "processing": f"{ns}.processing.{q}",
            "failed": f"{ns}.failed.{q}",
            "dead": f"{ns}.dead.{q}",
            "total": f"{ns}.stats.{q}.total",
            "processing_count": f"{ns}.stats.{q}.processing",
            "success": f"{ns}.stats.{q}.success",
            "failed_count": f"{ns}.stats.{q}.failed",
            "staging": f"{ns}.staging.{q}",
            "reservations": f"{ns}.reservations.{q}",
            "owners": f"{ns}.owners.{q}",
            "liveness": f"{ns}.liveness.{q}",
            "poison": f"{ns}.poison.{q}",
            "delayed": f"{ns}.delayed.{q}",
            "takeovers": f"{ns}.takeovers.{q}",
            "fence": f"{ns}.fence.{q}",
            "workers": f"{ns}.workers.{q}",
            "roster": f"{ns}.roster.{q}",
            "ledger": f"{ns}.ledger.{q}",
            "job_prefix": f"{ns}.jobs.{q}.",
        }
        for name, value in names.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "job_prefix_length", len(self.job_prefix.encode()))

    def job(self, pid: str | bytes) -> str | bytes:
        """`pid` as bytes when it was read from the server, where it may be anything."""
        if isinstance(pid, bytes):
            return self.job_prefix.encode() + pid
        return self.job_prefix + pid

    def reason(self, pid: str | bytes) -> str | bytes:
        """Why a failed or dead message is there."""
        prefix = f"{self.namespace}.reason.{self.queue}."
        return prefix.encode() + pid if isinstance(pid, bytes) else prefix + pid

    def reservation(self, reservation_id: str | bytes) -> str | bytes:
        prefix = f"{self.namespace}.reservation.{self.queue}."
        if isinstance(reservation_id, bytes):
            return prefix.encode() + reservation_id
        return prefix + reservation_id

    def expected_types(self) -> dict[str, str]:
        """Key -> Redis type, for every key that is not made up per message."""
        return {
            self.ready: "list",
            self.processing: "list",
            self.failed: "list",
            self.dead: "list",
            self.total: "string",
            self.processing_count: "string",
            self.success: "string",
            self.failed_count: "string",
            self.staging: "list",
            self.reservations: "zset",
            self.owners: "hash",
            self.liveness: "zset",
            self.poison: "list",
            self.delayed: "zset",
            self.takeovers: "hash",
            self.fence: "hash",
            self.workers: "zset",
            self.roster: "hash",
            self.ledger: "hash",
        }

    def counters(self) -> tuple[str, ...]:
        return (self.total, self.processing_count, self.success, self.failed_count)

    def samples(self) -> tuple[str | bytes, ...]:
        """One key of every kind: what has to share a slot on Redis Cluster."""
        return (*self.expected_types(), self.job("0"), self.reason("0"), self.reservation("0"))
