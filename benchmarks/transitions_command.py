"""`python -m benchmarks scripts`: what the transitions cost the server, now and in another revision.

The versions take turns on one server, one round of reserve, claim and settle each, so that whatever else the
machine does strikes both alike. A figure is the median over the rounds of the time that the server counts for
the call, divided by its messages.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from benchmarks import report
from benchmarks.contenders import ROOT
from benchmarks.payloads import payload
from benchmarks.session import say
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.scripts import Call, Script, script_directory
from worker_runtime.brokers.redis.server import EmbeddedRedis
from worker_runtime.envelope import encode_envelope, new_pid

NAMES = ("reserve", "claim", "settle")
#: Rounds that are not counted.
_FIRST = 20
#: As long as a token of a worker in a pod.
_WORKER = "benchmarks-0123456789-abcde-1-0123abcd"

#: Script -> microseconds of each round's call.
Costs = dict[str, list[float]]


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "scripts", help="what reserve, claim and settle cost the server", description=__doc__
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 50, 100], metavar="N")
    parser.add_argument("--rounds", type=int, default=400, metavar="N", help="of each version (400)")
    parser.add_argument("--against", metavar="REVISION", help="a revision of this repository to compare with")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    versions = {"now": _sources(None)}
    if arguments.against:
        try:
            versions[arguments.against] = _sources(arguments.against)
        except subprocess.CalledProcessError as error:
            say(f"no scripts in {arguments.against}: {error.stderr.strip()}")
            return 2
    lines = [f"- {name}: {value}" for name, value in report.machine([]).items()]
    lines += ["", "| messages a call | script | " + " | ".join(f"{name}, us" for name in versions) + " |"]
    lines.append("|--:|---|" + "--:|" * len(versions))
    for batch in arguments.batch:
        say(f"batches of {batch}, {arguments.rounds} rounds")
        costs = measure(versions, batch, arguments.rounds)
        rows = {
            name: [statistics.median(costs[version][name]) / batch for version in versions] for name in NAMES
        }
        rows["all three"] = [sum(column) for column in zip(*rows.values(), strict=True)]
        for name, figures in rows.items():
            lines.append(f"| {batch} | {name} | " + " | ".join(f"{one:.2f}" for one in figures) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    return 0


def _sources(revision: str | None) -> dict[str, Script]:
    """The scripts of this checkout, or of a revision. Raises CalledProcessError when git has none there."""
    found = {}
    for name in NAMES:
        source = _read("prelude.lua", revision) + _read(f"{name}.lua", revision)
        found[name] = Script(name, source, hashlib.sha1(source.encode()).hexdigest())
    return found


def _read(name: str, revision: str | None) -> str:
    if revision is None:
        return (script_directory() / name).read_text("utf-8")
    shown = subprocess.run(
        ["git", "show", f"{revision}:lua/{name}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return shown.stdout


def measure(versions: Mapping[str, Mapping[str, Script]], batch: int, rounds: int) -> dict[str, Costs]:
    """Version -> costs. Twice the batch is in work at each settlement, as in a worker that keeps up."""
    costs: dict[str, Costs] = {version: {name: [] for name in NAMES} for version in versions}
    owned: dict[str, tuple[list[str], str]] = {}
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        for scripts in versions.values():
            for script in scripts.values():
                client.script_load(script.source)
        for number in range(_FIRST + rounds):
            for index, (version, scripts) in enumerate(versions.items()):
                keys = QueueKeys(f"v{index}", "q")
                raws = [_envelope() for _ in range(batch)]
                client.lpush(keys.ready, *raws)
                reservation = f"{_WORKER}.{'0' * 32}.{number:x}"
                token = f"local {_WORKER} {reservation}"
                reserve = transitions.reserve(keys, reservation, "local", batch, 30.0)
                reserved, reply = _timed(client, scripts, reserve)
                pids = [json.loads(raw)["pid"] for raw in reply[2:]]
                claim = transitions.claim(keys, reservation, reply[1], token, "local", 60.0, pids)
                claimed, _ = _timed(client, scripts, claim)
                before = owned.get(version)
                owned[version] = (pids, token)
                if before is None:
                    continue
                settle = transitions.settle(keys, before[0], [before[1]] * batch, "c" * batch, 0.0)
                settled, verdicts = _timed(client, scripts, settle)
                if verdicts != b"c" * batch:
                    raise RuntimeError(f"{version} answered a settlement with {verdicts!r}")
                if number >= _FIRST:
                    for name, one in zip(NAMES, (reserved, claimed, settled), strict=True):
                        costs[version][name].append(one)
    return costs


def _envelope() -> bytes:
    text = json.dumps(payload(100), separators=(",", ":")).encode()
    return encode_envelope(new_pid(), "q", 1_700_000_000, text)


def _timed(client: redis.Redis, scripts: Mapping[str, Script], call: Call) -> tuple[float, Any]:
    """Microseconds that the server counted for the call, and its reply."""
    client.config_resetstat()
    words = dataclasses.replace(call, script=scripts[call.script.name]).by_sha()
    reply = client.execute_command(*words)  # type: ignore[no-untyped-call]
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec"]), reply
