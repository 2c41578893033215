"""Which entries of a list in the spec break a rule: a person is to be told where, not only that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from queueworker_operator.api.gates import Gate, GateType
from queueworker_operator.api.rollout import Step
from queueworker_operator.api.types import QueueWorkerSpec

#: The places, counted from 0, of the entries that break a rule.
Entries = Callable[[QueueWorkerSpec], list[int]]

#: What the name of a revision has behind that of its version.
_PREFETCH = re.compile(r".*-p[0-9]+")
#: What a waiver has at least, besides blanks around it.
_SOME_WORDS = re.compile(r"\S.{8,}\S", re.DOTALL)
_PLAIN_URL = re.compile(r"https?://[^?#@\s]+")
_API_PATH = re.compile(r"/api/v1(/query[a-z_]*)?/*$")
_UPPER = (GateType.CPU_EFFICIENCY, GateType.LATENCY)


def none_of(entries: Entries) -> Callable[[str, QueueWorkerSpec], bool]:
    """Whether a resource keeps such a rule."""
    return lambda name, spec: not entries(spec)


def without_one_verb(spec: QueueWorkerSpec) -> list[int]:
    return _where(step.verbs != 1 for step in spec.steps)


def without_one_scale(spec: QueueWorkerSpec) -> list[int]:
    return _where(_scaled_twice(step) for step in spec.steps)


def below_coroutines(spec: QueueWorkerSpec) -> list[int]:
    return _where((step.set_prefetch or spec.coroutines) < spec.coroutines for step in spec.steps)


def gates_with_other_limits(spec: QueueWorkerSpec) -> list[int]:
    return _where(_has_another_limit(gate) for gate in spec.gates)


def gates_with_other_audits(spec: QueueWorkerSpec) -> list[int]:
    return _where(_has_another_audit(gate) for gate in spec.gates)


def gates_named_before(spec: QueueWorkerSpec) -> list[int]:
    types = [gate.type for gate in spec.gates]
    return _where(type_ in types[:index] for index, type_ in enumerate(types))


def gates_waived_without_a_word(spec: QueueWorkerSpec) -> list[int]:
    return _where(gate.waiver is not None and not _SOME_WORDS.search(gate.waiver) for gate in spec.gates)


def prometheus_by_no_plain_url(spec: QueueWorkerSpec) -> list[int]:
    return _where(
        gate.prometheus is not None and not _PLAIN_URL.fullmatch(gate.prometheus.url) for gate in spec.gates
    )


def prometheus_by_another_path(spec: QueueWorkerSpec) -> list[int]:
    return _where(
        gate.prometheus is not None and _API_PATH.search(gate.prometheus.url) is not None
        for gate in spec.gates
    )


def prometheus_with_other_credentials(spec: QueueWorkerSpec) -> list[int]:
    return _where(_signs_in_twice(gate) for gate in spec.gates)


def prometheus_verified_in_vain(spec: QueueWorkerSpec) -> list[int]:
    return _where(
        gate.prometheus is not None
        and gate.prometheus.tls is not None
        and not gate.prometheus.url.startswith("https://")
        for gate in spec.gates
    )


def revisions_among_versions(spec: QueueWorkerSpec) -> list[int]:
    return _where(_PREFETCH.fullmatch(version) is not None for version in spec.revoked_versions)


def _where(broken: Iterable[bool]) -> list[int]:
    return [index for index, is_broken in enumerate(broken) if is_broken]


def _scaled_twice(step: Step) -> bool:
    scale = step.set_canary_scale
    return scale is not None and (scale.replicas is None) == (scale.percent is None)


def _signs_in_twice(gate: Gate) -> bool:
    given = gate.prometheus.credentials if gate.prometheus else None
    return given is not None and (given.token is None) == (given.login is None)


def _has_another_limit(gate: Gate) -> bool:
    least, most = gate.min_percent_of_stable is not None, gate.max_percent_of_stable is not None
    if least and gate.type is not GateType.QUEUE_PROGRESS:
        return True
    if most and gate.type not in _UPPER:
        return True
    return gate.waiver is not None and (least or most)


def _has_another_audit(gate: Gate) -> bool:
    if gate.job is None and gate.prometheus is None:
        return False
    ways = sum(way is not None for way in (gate.job, gate.prometheus, gate.waiver))
    return ways != 1 or gate.type is not GateType.USAGE_ACCOUNTING
