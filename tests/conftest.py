"""Rules for every suite: an unexpected skip fails the run in CI, and each run tries the same examples."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.replicated_cluster import ReplicatedCluster

# A run says whether this source works, not whether chance was kind. New examples are sought on purpose:
# pytest --hypothesis-profile=search
_SLOW_MACHINES = (HealthCheck.too_slow, HealthCheck.filter_too_much)
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=_SLOW_MACHINES)
settings.register_profile("search", deadline=None, suppress_health_check=_SLOW_MACHINES)
settings.load_profile("same")

# A script's background jobs ignore SIGINT, and so would every program that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def six_nodes() -> Iterator[ReplicatedCluster]:
    """For `six`: one for all suites, since it takes seconds to form."""
    with ReplicatedCluster() as cluster:
        yield cluster


@pytest.fixture
def six(six_nodes: ReplicatedCluster) -> Iterator[ReplicatedCluster]:
    """A Redis Cluster whose primaries have a replica each. A test may do it harm."""
    yield six_nodes
    six_nodes.repair()


#: Node id prefix -> why a skip there is expected. Every other test runs everywhere.
EXPECTED_SKIPS: dict[str, str] = {
    "tests/brokers/test_dragonfly.py::test_the_conformance_suite_on_dragonfly": "nothing here can fetch a"
    " Dragonfly; QUEUEWORKER_DRAGONFLY_URL names one",
    "tests/runtime/test_first_process.py": "not every container lets a process make a namespace",
}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not os.environ.get("CI"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [report.nodeid for report in reporter.stats.get("skipped", [])] if reporter else []
    unexpected = [node for node in skipped if not node.startswith(tuple(EXPECTED_SKIPS))]
    if reporter and unexpected and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(
            "Skipped although nothing says that it may be: " + ", ".join(unexpected), red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
