"""A QueueWorker as one HTML page: no script, no network, everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from queueworker_operator.api.gates import GateStatus, GateType
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import RolloutStatus
from queueworker_operator.cli.plots import Bar, bars
from queueworker_operator.cli.seen import Seen
from queueworker_operator.cli.verdict import verdict

_STYLE = """
:root{--ink:#1c2128;--soft:#667;--line:#d8dce2;--ground:#fff;--good:#2a8c55;--bad:#c23b3b;--odd:#c08a1c;--run:#2b6cb0}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa3ad;--line:#3a414a;--ground:#16191d;
--good:#4cc38a;--bad:#ef6a6a;--odd:#e0b252;--run:#6aa9e9}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:62rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:0}
h2{font-size:1.1rem;margin:2rem 0 .4rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;width:100%;font-size:.9rem}th{text-align:left;font-weight:600;color:var(--soft)}
th,td{padding:.25rem .8rem .25rem 0;vertical-align:top;border-bottom:1px solid var(--line);
overflow-wrap:anywhere}
svg{max-width:100%;height:auto;display:block;margin:.8rem 0}svg text{font-size:13px;fill:var(--ink)}
svg .head{font-weight:600}svg .label{text-anchor:end;fill:var(--soft)}
rect.good{fill:var(--good)}rect.bad{fill:var(--bad)}rect.odd{fill:var(--odd)}
.limit{stroke:var(--ink);stroke-width:2;stroke-dasharray:3 2}
.good{color:var(--good)}.bad{color:var(--bad)}.odd{color:var(--odd)}.run{color:var(--run)}.soft{color:var(--soft)}
li.now{font-weight:600}li.done{color:var(--soft)}
"""
#: Nothing may be loaded, whatever the page says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_VERDICTS = {"Passed": "good", "Failed": "bad"}
_ANSWERS = {"SETTLED": "good", "MOVING": "run", "WAITING": "odd", "BLOCKED": "bad"}
_STATES = {"True": "good", "False": "bad"}
#: Conditions that are there only while something is wrong or under way.
_ABNORMAL = ("Stalled", "Reconciling")


@dataclass(frozen=True, slots=True)
class Event:
    """`at` is None where the source keeps no times."""

    at: datetime | None
    type: str
    reason: str
    message: str


def page(seen: Seen, spec: Mapping[str, Any], events: Sequence[Event] | str, now: datetime) -> str:
    """The whole page. `events` is a text where they could not be read."""
    found = verdict(seen)
    parts = [
        f"<h1>{escape(seen.title)}</h1>",
        f'<p><strong class="{_ANSWERS[found.answer.name]}">{escape(found.answer.value)}</strong> '
        f"({escape(found.reason)}): {escape(found.message)}</p>",
        f'<p class="soft">Queue {escape(seen.queue or "unknown")}. Generation {seen.generation}, status of '
        f"{seen.status.observed_generation or 'none'}. Looked at {_time(now)}.</p>",
        *_section("Change", _change(seen, spec)),
        *_section("Revisions", _revisions(seen)),
        *_section("Gates", _gates(seen.status.gates)),
        *_section("Conditions", _conditions(seen)),
        *_section("Events", _events(events)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        f"<title>{escape(seen.title)}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _section(title: str, content: Iterable[str]) -> Iterator[str]:
    yield f"<h2>{title}</h2>"
    yield from content


def _change(seen: Seen, spec: Mapping[str, Any]) -> Iterator[str]:
    status = seen.status
    rollout = status.rollout or RolloutStatus()
    rows: list[tuple[str, str]] = [("Stage", rollout.stage.value)]
    rows += [("Stable", status.stable.revision)] if status.stable else []
    rows += [("To", rollout.target)] if rollout.target and rollout.stage is not Stage.IDLE else []
    rows += [("Step", f"{rollout.step}, attempt {rollout.attempt}")] if rollout.step else []
    rows += [("Began", _time(rollout.started_at))] if rollout.started_at else []
    rows += [("Last got further", _time(rollout.progressed_at))] if rollout.progressed_at else []
    rows += [("Leaving", rollout.leaving)] if rollout.leaving else []
    rows += [("Waits for", rollout.reason)] if rollout.reason else []
    rows += [("Evidence", rollout.evidence)] if rollout.evidence else []
    rows += [("Aborted", status.aborted)] if status.aborted else []
    if status.rolled_back:
        rows.append(("Rolled back", f"{status.rolled_back.asked}, to {status.rolled_back.revision}"))
    request = spec.get("request")
    if isinstance(request, Mapping):
        answer = "not answered yet"
        if request.get("id") == status.handled_request:
            answer = f"ignored: {status.request_ignored}" if status.request_ignored else "done"
        rows.append(("Request", f"{request.get('action')} ({request.get('id')}), {answer}"))
    rows += [("Kept to go back to", ", ".join(status.kept))] if status.kept else []
    yield _table((), [[_cell(name), _cell(value)] for name, value in rows])
    steps = (spec.get("rollout") or {}).get("steps") or []
    if steps:
        yield f"<ol>{''.join(_step(number, one, rollout) for number, one in enumerate(steps, 1))}</ol>"


def _step(number: int, step: Any, rollout: RolloutStatus) -> str:
    at = (rollout.step or "").partition("/")[0]
    state = ""
    if at.isdigit():
        state = "done" if number < int(at) else "now" if number == int(at) else ""
    return f'<li class="{state}">{escape(_plain(step))}</li>'


def _plain(value: Any) -> str:
    """A step in a line: its names and values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(one)}".strip() for key, one in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _revisions(seen: Seen) -> Iterator[str]:
    if not seen.status.revisions:
        yield '<p class="soft">None.</p>'
        return
    rows = []
    for one in seen.status.revisions:
        members = ", ".join(f"{m.name} {m.state}" for m in seen.members.get(one.name, ()))
        numbers = (f"{one.ready_replicas}/{one.replicas}", one.prefetch, one.coroutines or "", one.restarts)
        rows.append([_cell(text) for text in (one.name, one.role.value, *numbers, members)])
    yield _table(("Revision", "Role", "Ready", "Prefetch", "Coroutines", "Restarts", "Workers"), rows)


def _gates(gates: Sequence[GateStatus]) -> Iterator[str]:
    if not gates:
        yield '<p class="soft">No analysis of this change was judged.</p>'
        return
    for type_ in GateType:
        if of_type := [one for one in gates if one.type is type_]:
            yield _plot(type_, of_type)
    rows = [
        [
            _cell(f"{one.step}, attempt {one.attempt}"),
            _cell(f"{one.revision} (prefetch {one.arm})"),
            _cell(one.type.value),
            _cell(one.verdict.value, _VERDICTS.get(one.verdict.value, "odd")),
            _cell(one.message),
            _cell(one.samples),
            _cell(_time(one.at)),
        ]
        for one in gates
    ]
    yield _table(("Step", "Arm", "Gate", "Verdict", "Reading", "Samples", "At"), rows)


def _plot(type_: GateType, gates: Sequence[GateStatus]) -> str:
    """Each arm beside the stable revision where the gate compares rates, else how much was seen of it."""
    compared = any(one.percent is not None for one in gates)
    rows = []
    for one in gates:
        label, kind = f"step {one.step}, prefetch {one.arm}", _VERDICTS.get(one.verdict.value, "odd")
        if not compared:
            rows.append(Bar(label, one.samples, f"{one.samples} {one.verdict}", kind))
        elif one.percent is None:
            rows.append(Bar(label, 0, f"not compared, {one.verdict}", kind))
        else:
            limit = f"limit {one.limit} %" if one.limit is not None else ""
            rows.append(Bar(label, one.percent, f"{one.percent} % {one.verdict}", kind, one.limit, limit))
    what = "percent of the stable revision" if compared else "settled messages of the canary"
    return bars(f"{type_}: {what}", rows)


def _conditions(seen: Seen) -> Iterator[str]:
    if not seen.status.conditions:
        yield '<p class="soft">None: the operator has not written a status yet.</p>'
        return
    rows = []
    for one in seen.status.conditions:
        kind = _STATES.get(one.status, "odd")
        if one.type in _ABNORMAL:
            kind = "bad" if one.type == "Stalled" else "run"
        since = _time(one.last_transition_time)
        cells = (_cell(one.type), _cell(one.status, kind), *map(_cell, (one.reason, one.message, since)))
        rows.append(list(cells))
    yield _table(("Condition", "", "Reason", "Message", "Since"), rows)


def _events(events: Sequence[Event] | str) -> Iterator[str]:
    if isinstance(events, str):
        yield f'<p class="soft">{escape(events)}</p>'
    elif not events:
        yield '<p class="soft">None.</p>'
    else:
        rows = [
            [
                _cell(_time(one.at) if one.at else ""),
                _cell(one.reason, "bad" if one.type == "Warning" else ""),
                _cell(one.message),
            ]
            for one in events
        ]
        yield _table(("At", "Event", "Message"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{escape(one)}</th>' for one in heads)}</tr>" if heads else ""
    return f"<table>{head}{''.join(f'<tr>{chr(10).join(row)}</tr>' for row in rows)}</table>"


def _cell(value: object, kind: str = "") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f"<td{of_kind}>{escape(str(value))}</td>"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
