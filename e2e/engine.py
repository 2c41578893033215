"""The Docker engine that clusters and images live in: the machine's own, else a private one started here."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from e2e import cache, oci_wrapper
from e2e.commands import run
from e2e.failure import SetupError
from e2e.locations import cache_root, engine_root
from e2e.packages import ensure_packages
from e2e.progress import Progress

START_SECONDS = 90.0
STOP_SECONDS = 60.0
# A unix socket's path must fit sockaddr_un, which is 108 bytes with its end.
SOCKET_PATH_LIMIT = 107
CLUSTER_LABEL = "io.x-k8s.kind.cluster"
OWN_PREFIX = "qw-"

# The shared lock of this process on the private engine, which is held until the process ends.
_in_use: list[TextIO] = []


@dataclass(frozen=True, slots=True)
class Engine:
    """A Docker engine that answers. `host` is its DOCKER_HOST, empty for the environment's own."""

    host: str
    private: bool

    @property
    def environment(self) -> dict[str, str]:
        """What docker, kind and `docker build` need in their environment; BuildKit is not asked for."""
        own = {"DOCKER_HOST": self.host} if self.host else {}
        return {**own, "DOCKER_BUILDKIT": "0", "DOCKER_CLI_HINTS": "false", "BUILDKIT_PROGRESS": "plain"}

    def docker(
        self,
        *arguments: str | Path,
        stdin: str | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the docker command against this engine."""
        return run(
            ["docker", *arguments], environment=self.environment, stdin=stdin, check=check, timeout=timeout
        )

    def has_image(self, reference: str) -> bool:
        """Whether the engine has the image."""
        return self.docker("image", "inspect", reference, check=False).returncode == 0


def answers(host: str) -> bool:
    """Whether an engine answers at `host` (empty: the environment's default)."""
    if shutil.which("docker") is None:
        return False
    environment = {"DOCKER_HOST": host} if host else {}
    try:
        probe = run(
            ["docker", "info", "--format", "{{.ServerVersion}}"],
            environment=environment,
            check=False,
            timeout=20,
        )
    except SetupError:
        return False
    return probe.returncode == 0 and bool(probe.stdout.strip())


def private_host() -> str:
    """The DOCKER_HOST of the private engine."""
    socket = engine_root() / "docker.sock"
    if len(os.fsencode(socket)) > SOCKET_PATH_LIMIT:
        raise SetupError(
            f"docker socket {socket}: the path is too long for a unix socket; set a shorter XDG_CACHE_HOME"
        )
    return f"unix://{socket}"


def running() -> Engine | None:
    """The engine that answers now, or None; starts nothing."""
    if answers(""):
        return Engine("", private=False)
    host = private_host()
    return Engine(host, private=True) if answers(host) else None


def ensure(progress: Progress) -> Engine:
    """An engine that answers: one that runs, else a private one, started (and installed by apt) here.

    No other run stops it while this process lives.
    """
    _use()
    found = running()
    if found is not None:
        return found
    with cache.exclusive(cache_root(), "engine", progress.say):
        found = running()
        if found is not None:
            return found
        why = "to run cluster nodes as containers, and no Docker engine answers"
        ensure_packages({"dockerd": "docker.io", "runc": "runc", "iptables": "iptables"}, why, progress)
        # Debian 12's docker.io holds the command as well; later releases have a package of its own for it.
        ensure_packages({"docker": "docker-cli"}, why, progress)
        found = running()  # Where the machine's service manager runs, installing the package has started one.
        if found is not None:
            return found
        with progress.step("starting a private Docker engine", "10 s"):
            engine = _start()
        _remove_dead_clusters(engine, progress)
        return engine


def engine_processes(root: Path) -> dict[int, str]:
    """The private engine's live processes (dockerd, containerd, shims) by id, known by our folder."""
    marker = os.fsencode(root) + b"/"
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        program = Path(os.fsdecode(command[0])).name
        ours = program in {"dockerd", "containerd"} or program.startswith("containerd-shim")
        if ours and state != "Z" and any(marker in argument for argument in command[1:]):
            found[int(entry.name)] = program
    return found


def _start() -> Engine:
    root = engine_root()
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o700)
    host = private_host()
    alive = engine_processes(root)
    # An engine that does not answer is of no use, and what a killed one left must not stop the next: dockerd
    # takes a pid file whose number another process has now for a running engine or containerd.
    for process, program in alive.items():
        if program in {"dockerd", "containerd"}:
            _signal(process, signal.SIGKILL)
    _await_end({process for process, program in alive.items() if program in {"dockerd", "containerd"}}, 10.0)
    for stale in ("docker.pid", "docker.sock", "exec/containerd/containerd.pid"):
        (root / stale).unlink(missing_ok=True)
    if not engine_processes(root):
        shutil.rmtree(root / "exec", ignore_errors=True)
    log = root / "dockerd.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [
                "dockerd",
                *("--data-root", str(root / "data")),
                *("--exec-root", str(root / "exec")),
                *("--pidfile", str(root / "docker.pid")),
                *("--host", host),
                *("--log-level", "warn"),
                # The default lowers the score, which needs a capability that may be missing.
                *("--oom-score-adjust", "0"),
                *_runtime_arguments(root),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if answers(host):
            return Engine(host, private=True)
        if daemon.poll() is not None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise SetupError(f"dockerd ended with code {daemon.returncode}; its log {log} ends with:\n{tail}")
        time.sleep(0.3)
    os.killpg(daemon.pid, signal.SIGTERM)
    raise SetupError(f"dockerd did not answer at {host} within {START_SECONDS:.0f} s; see {log}")


def _runtime_arguments(root: Path) -> list[str]:
    status = Path("/proc/self/status").read_text()
    if not oci_wrapper.missing_capabilities(oci_wrapper.bounding_set(status)):
        return []
    interpreter = (
        "/usr/bin/python3" if Path("/usr/bin/python3").exists() else os.path.realpath(sys.executable)
    )
    wrapper = root / "runc-with-present-capabilities"
    temporary = root / ".wrapper.new"
    temporary.write_text(f"#!{interpreter} -I\n" + Path(oci_wrapper.__file__).read_text())
    temporary.chmod(0o755)
    temporary.replace(wrapper)
    return ["--add-runtime", f"present-caps={wrapper}", "--default-runtime", "present-caps"]


def _remove_dead_clusters(engine: Engine, progress: Progress) -> None:
    """The engine was down, so no node of ours survived: what is left of them only takes disk and names."""
    listed = engine.docker("ps", "--all", "--format", f'{{{{.ID}}}} {{{{.Label "{CLUSTER_LABEL}"}}}}').stdout
    dead = [line.split()[0] for line in listed.splitlines() if f" {OWN_PREFIX}" in line]
    if dead:
        progress.say(f"removing {len(dead)} node containers that a stopped engine left")
        engine.docker("rm", "--force", "--volumes", *dead)


def stop(progress: Progress) -> bool:
    """Stop the private engine with every container in it. False when none runs."""
    root = engine_root()
    with cache.exclusive(cache_root(), "engine", progress.say):
        alive = engine_processes(root)
        daemons = {process for process, program in alive.items() if program == "dockerd"}
        if not alive:
            return False
        with progress.step("stopping the private Docker engine"):
            for process in daemons:
                _signal(process, signal.SIGTERM)
            _await_end(daemons, STOP_SECONDS)
            for process in engine_processes(root):
                _signal(process, signal.SIGKILL)
            _await_end(set(engine_processes(root)), 10.0)
    return True


def stop_unused(progress: Progress) -> bool:
    """Stop the private engine if no container runs in it, and no other process has asked for one."""
    for handle in _in_use:
        handle.close()
    _in_use.clear()
    with _users().open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        found = running()
        if found is not None and (not found.private or found.docker("ps", "--quiet").stdout.split()):
            return False
        return stop(progress)


def _users() -> Path:
    path = cache_root() / "locks" / "engine-users.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _use() -> None:
    if not _in_use:
        handle = _users().open("a+")
        # Waits for one that stops it now.
        fcntl.flock(handle, fcntl.LOCK_SH)
        _in_use.append(handle)


def _signal(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def _await_end(processes: set[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    root = engine_root()
    while processes & engine_processes(root).keys() and time.monotonic() < deadline:
        time.sleep(0.1)
