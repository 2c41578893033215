"""Settings of the operator, from the environment. Errors name the variable, its value and what is allowed."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class OperatorSettingsError(ValueError):
    """A variable cannot be used; the text says which and why."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    #: Empty: all namespaces.
    namespaces: tuple[str, ...] = ()
    #: 0 takes a free port.
    health_port: int = 8080
    resync_seconds: float = 15.0
    #: Where the Lease is.
    own_namespace: str = "default"
    lease_name: str = "queueworker-operator"
    #: Name of this candidate. A pod's own name, since a pod runs one operator at a time; else unique.
    identity: str = ""
    log_level: str = "info"


def settings_from(environ: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Read all variables. Raises OperatorSettingsError."""

    def text(name: str, default: str) -> str:
        return environ.get(name, "").strip() or default

    def number(name: str, default: str, lowest: float, highest: float, whole: bool) -> float:
        given = text(name, default)
        kind = "a whole number" if whole else "a number"
        try:
            value = float(int(given)) if whole else float(given)
        except ValueError:
            value = float("nan")
        if not lowest <= value <= highest:
            raise OperatorSettingsError(f"{name}={given!r} must be {kind} from {lowest:g} to {highest:g}")
        return value

    def name(variable: str, default: str) -> str:
        given = text(variable, default)
        if len(given) > 253 or not _NAME.fullmatch(given):
            raise OperatorSettingsError(f"{variable}={given!r} must be a Kubernetes name, such as {default}")
        return given

    namespaces = []
    for entry in text("QUEUEWORKER_OPERATOR_NAMESPACES", "").split(","):
        entry = entry.strip()
        if entry and not _NAME.fullmatch(entry):
            raise OperatorSettingsError(
                f"QUEUEWORKER_OPERATOR_NAMESPACES has {entry!r}: write names of namespaces with commas "
                "between, or leave it empty for all namespaces"
            )
        if entry and entry not in namespaces:
            namespaces.append(entry)
    level = text("QUEUEWORKER_OPERATOR_LOG_LEVEL", "info")
    if level not in ("debug", "info", "warning", "error"):
        raise OperatorSettingsError(
            f"QUEUEWORKER_OPERATOR_LOG_LEVEL={level!r} must be one of debug, info, warning, error"
        )
    return OperatorSettings(
        namespaces=tuple(namespaces),
        health_port=int(number("QUEUEWORKER_OPERATOR_HEALTH_PORT", "8080", 0, 65535, True)),
        resync_seconds=number("QUEUEWORKER_OPERATOR_RESYNC_SECONDS", "15", 1, 45, False),
        own_namespace=name("POD_NAMESPACE", "default"),
        lease_name=name("QUEUEWORKER_OPERATOR_LEASE", "queueworker-operator"),
        identity=environ.get("POD_NAME") or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        log_level=level,
    )
