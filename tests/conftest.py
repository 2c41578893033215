"""Rules for every suite: a skip that nobody expected fails the run in CI."""

from __future__ import annotations

import os

import pytest

#: Node id prefix -> why a skip there is expected. Empty: every test runs everywhere.
EXPECTED_SKIPS: dict[str, str] = {}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not os.environ.get("CI"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [report.nodeid for report in reporter.stats.get("skipped", [])] if reporter else []
    unexpected = [node for node in skipped if not node.startswith(tuple(EXPECTED_SKIPS) or ("\0",))]
    if unexpected and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(
            "Skipped although nothing says that it may be: " + ", ".join(unexpected), red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
