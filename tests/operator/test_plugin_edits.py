"""What a verb of `kubectl queueworker` does to the text of a YAML file: one field, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from queueworker_operator.cli.spec_text import CannotEditError, edited
from queueworker_operator.cli.wishes import Edit

REQUEST = {"id": "abort-1", "action": "Abort"}

TEXT = """\
# Usage events.
apiVersion: v1
kind: Secret
metadata: {name: usage-redis}
stringData:
  url: redis://127.0.0.1   # here
---
apiVersion: queueworker.dev/v1alpha1
kind: QueueWorker
metadata:
  name: mails
spec:
  # Immutable.
  queue: {name: mails}
  template: &same
    spec:
        containers:
        - name: "worker"
---
kind: QueueWorker
metadata: {name: stats-usage}
spec:   # what is wanted

  # The queue.
  queue:
    name: 'stats-usage'
  request:   # of last week
    id: old
    action: SkipStep
  # How many.
  replicas: 2
  hold:
    reason: |
      the night
      is long

  # Stays.
  paused: true  # until Monday
"""


@pytest.mark.parametrize(
    ("name", "edit", "old", "new"),
    [
        (
            "mails",
            Edit("request", REQUEST),
            "spec:\n  # Immutable.\n",
            "spec:\n  request: {id: abort-1, action: Abort}\n  # Immutable.\n",
        ),
        ("mails", Edit("paused", True), "spec:\n  # Immutable.\n", "spec:\n  paused: true\n  # Immutable.\n"),
        (
            "stats-usage",
            Edit("request", REQUEST),
            "request:   # of last week\n    id: old\n    action: SkipStep\n",
            "request: {id: abort-1, action: Abort}\n",
        ),
        ("stats-usage", Edit("paused", None), "  paused: true  # until Monday\n", ""),
        ("stats-usage", Edit("hold", None), "  hold:\n    reason: |\n      the night\n      is long\n", ""),
        (
            "stats-usage",
            Edit("hold", {"reason": 'no: "changes" # now \U0001f319'}),
            "hold:\n    reason: |\n      the night\n      is long\n",
            'hold: {reason: "no: \\"changes\\" # now \U0001f319"}\n',
        ),
    ],
)
def test_only_the_lines_of_the_field_change(name: str, edit: Edit, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    assert edited(TEXT, name, edit) == TEXT.replace(old, new)


@pytest.mark.parametrize("value", ["no", "1", "2026-11-30", "~", "a\nb", "\x7f", "tab\there", "it's"])
def test_each_text_is_read_back_as_it_was_said(value: str) -> None:
    text = edited(TEXT, "mails", Edit("hold", {"reason": value}))
    assert list(yaml.safe_load_all(text))[1]["spec"]["hold"] == {"reason": value}


def test_each_text_is_read_back_from_json_as_it_was_said() -> None:
    text = '{"kind": "QueueWorker", "metadata": {"name": "w"}, "spec": {"replicas": 1}}'
    reason = '\U0001f319 \x7f\u2028\n"\u00e9'
    for read in (json.loads, yaml.safe_load):
        assert read(edited(text, "w", Edit("hold", {"reason": reason})))["spec"]["hold"]["reason"] == reason


def spec_of(text: str) -> Any:
    return (json.loads(text) if text.startswith("{") else yaml.safe_load(text))["spec"]


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "QueueWorker", "metadata": {"name": "w"}, "spec": {"replicas": 1, "queue": {"name": "q"}}}',
        '{"kind":"QueueWorker","metadata":{"name":"w"},"spec":{"replicas":1,"queue":{"name":"q"}}}',
        'kind: QueueWorker\nmetadata: {name: w}\nspec: { "replicas": 1, "queue": {"name": "q"} }\n',
        '{"kind": "QueueWorker", "metadata": {"name": "w"}, "spec": {\n  "replicas": 1,\n  "queue": {}\n}}\n',
        '{"kind": "QueueWorker",\r\n\t"metadata": {"name": "w"},\r\n\t"spec": {\r\n\t\t"replicas": 1,\r\n'
        '\t\t"queue": {"name": "q"}\r\n\t}\r\n}\r\n',
        "kind: QueueWorker\nmetadata: {name: w}\nspec: { # mine\n  replicas: 1, queue: {name: q}\n}\n",
        "kind: QueueWorker\nmetadata: {name: w}\nspec: {replicas: 1, queue: {name: q}}\n",
        "kind: QueueWorker\nmetadata: {name: w}\nspec:\n  replicas: 1\n  queue: {name: q}",
        "kind: QueueWorker\r\nmetadata: {name: w}\r\nspec:\r\n  replicas: 1\r\n  queue: {name: q}\r\n",
        "\ufeffkind: QueueWorker\nmetadata: {name: w}\nspec:\n\n  replicas: 1\n  queue: {name: q}\n...\n",
    ],
)
def test_what_is_put_in_can_be_changed_and_taken_out_again(text: str) -> None:
    before = spec_of(text)
    held = edited(text, "w", Edit("hold", {"reason": "night"}))
    assert spec_of(held) == before | {"hold": {"reason": "night"}}
    both = edited(held, "w", Edit("request", REQUEST))
    changed = edited(both, "w", Edit("hold", {"reason": "day"}))
    assert spec_of(changed) == before | {"hold": {"reason": "day"}, "request": REQUEST}
    assert edited(edited(changed, "w", Edit("hold", None)), "w", Edit("request", None)) == text


def test_the_last_of_a_flow_mapping_can_be_taken_out() -> None:
    text = "kind: QueueWorker\nmetadata: {name: w}\nspec: {replicas: 1, paused: true}\n"
    assert edited(text, "w", Edit("paused", None)) == text.replace(", paused: true", "")


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        # The spec is another one's: what is written there is written twice.
        (
            "a: &a {replicas: 1}\nkind: QueueWorker\nmetadata: {name: w}\nspec: *a\n",
            Edit("paused", True),
        ),
        # The field is another one's.
        (
            "a: &a {reason: night}\nkind: QueueWorker\nmetadata: {name: w}\nspec:\n  hold: *a\n  x: 1\n",
            Edit("hold", {"reason": "day"}),
        ),
        # It comes by a merge key, so there is no line to take out.
        (
            "a: &a {paused: true}\nkind: QueueWorker\nmetadata: {name: w}\nspec:\n  <<: *a\n  replicas: 1\n",
            Edit("paused", None),
        ),
        # Somebody else refers to what would go.
        (
            "kind: QueueWorker\nmetadata: {name: w}\nspec:\n  hold: &h {reason: x}\n  replicas: 1\nb: *h\n",
            Edit("hold", None),
        ),
        # Somebody else refers to the whole spec, and would get the field as well.
        (
            "kind: QueueWorker\nmetadata: {name: w}\nspec: &s\n  replicas: 1\nagain: *s\n",
            Edit("paused", True),
        ),
        # A key and its value on lines of their own.
        ("kind: QueueWorker\nmetadata: {name: w}\nspec:\n  ? paused\n  : true\n", Edit("paused", None)),
    ],
)
def test_what_cannot_be_edited_alone_is_left_to_a_person(text: str, edit: Edit) -> None:
    with pytest.raises(CannotEditError, match=r"remove spec\.paused|remove spec\.hold|write under spec"):
        edited(text, "w", edit)


def test_a_document_that_is_not_there_is_named() -> None:
    with pytest.raises(CannotEditError, match="nobody"):
        edited(TEXT, "nobody", Edit("paused", True))
