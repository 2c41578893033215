"""Base images: pulled where a registry answers, else built on the spot from a minimal Debian file system."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from e2e import cache, golang
from e2e.commands import run
from e2e.engine import Engine
from e2e.failure import SetupError
from e2e.locations import IMAGE_RECIPES, cache_root
from e2e.packages import ensure_packages
from e2e.progress import Progress
from e2e.versions import DEBIAN_SUITE, PUBLISHED_BROKER_IMAGE, PUBLISHED_PYTHON_IMAGE

REGISTRY_SECONDS = 4.0
PULL_SECONDS = 600.0
BROKER_IMAGE = "queueworker/redis:dev"


@dataclass(frozen=True, slots=True)
class PythonBase:
    """What our Dockerfiles stand on: `runtime` is shipped, `builder` only installs with pip."""

    runtime: str
    builder: str


@lru_cache(maxsize=4)
def registry_answers(engine: Engine) -> bool:
    """Whether the engine's default registry can be reached at all; decided within seconds.

    QUEUEWORKER_REGISTRY=never says no without asking, for machines where a connection opens but pulls fail.
    """
    if os.environ.get("QUEUEWORKER_REGISTRY", "auto") == "never":
        return False
    template = "{{.IndexServerAddress}} {{.HTTPSProxy}}"
    index, *proxies = engine.docker("info", "--format", template).stdout.split()
    if proxies:
        return True  # The engine's proxy decides, so only a pull can tell.
    host = urlsplit(index).hostname or ""
    try:
        with socket.create_connection((host, 443), timeout=REGISTRY_SECONDS) as connection:
            with ssl.create_default_context().wrap_socket(connection, server_hostname=host):
                return True
    except OSError:
        return False


def pull(engine: Engine, reference: str, progress: Progress) -> bool:
    """Have the published image, pulling it if needed. False when it cannot be had: it is built instead."""
    if engine.has_image(reference):
        return True
    if not registry_answers(engine):
        return False
    try:
        with progress.step(f"pulling {reference}"):
            engine.docker("pull", reference, timeout=PULL_SECONDS)
    except SetupError as error:
        progress.say(f"{reference}: cannot be pulled ({str(error).splitlines()[-1]}); building one instead")
        return False
    return True


def host_certificates() -> bytes:
    """The certificates this host trusts: maybe a private authority's, which pip in a container must know."""
    candidates = [
        os.environ.get("PIP_CERT"),
        os.environ.get("SSL_CERT_FILE"),
        ssl.get_default_verify_paths().cafile,
    ]
    for candidate in [*candidates, "/etc/ssl/certs/ca-certificates.crt"]:
        if candidate and Path(candidate).is_file():
            return Path(candidate).read_bytes()
    raise SetupError("certificates: none found on this host; install with `apt-get install ca-certificates`")


def build(
    engine: Engine,
    context: Path,
    tag: str,
    *,
    target: str | None = None,
    dockerfile: Path | None = None,
    arguments: dict[str, str] | None = None,
) -> None:
    """`docker build` with the classic builder."""
    command: list[str | Path] = ["build", "--quiet", "--tag", tag]
    if target is not None:
        command += ["--target", target]
    if dockerfile is not None:
        command += ["--file", dockerfile]
    for name, value in (arguments or {}).items():
        command += ["--build-arg", f"{name}={value}"]
    engine.docker(*command, context)


def remove_older(engine: Engine, reference: str) -> None:
    """Drop what other recipes left under the same name; images that containers use stay."""
    repository, _, tag = reference.rpartition(":")
    tags = engine.docker("images", "--format", "{{.Tag}}", repository).stdout.split()
    older = [f"{repository}:{one}" for one in tags if one not in {tag, "dev", "<none>"}]
    if older:
        engine.docker("rmi", *older, check=False)


def debian_recipe() -> cache.Recipe:
    """What determines the minimal Debian file system."""
    return cache.Recipe(
        "debian",
        (
            ("suite", DEBIAN_SUITE),
            ("architecture", golang.architecture()),
            ("recipe", "3"),
        ),
    )


def debian(engine: Engine, progress: Progress) -> str:
    """The reference of a minimal Debian 12 image in the engine."""
    recipe = debian_recipe()
    tag = f"queueworker/debian:{DEBIAN_SUITE}-{recipe.digest}"
    if not engine.has_image(tag):
        folder = cache.obtain(
            cache_root(), recipe, lambda folder: _debootstrap(folder, progress), progress.say
        )
        with progress.step("importing the Debian file system into the engine", "5 s"):
            engine.docker("import", folder / "rootfs.tar", tag)
        remove_older(engine, tag)
    return tag


def _debootstrap(folder: Path, progress: Progress) -> None:
    ensure_packages({"debootstrap": "debootstrap"}, "to make the Debian file system of our images", progress)
    root = folder / "rootfs"
    with progress.step(f"making a minimal Debian {DEBIAN_SUITE} file system with debootstrap", "1 min"):
        try:
            run(["debootstrap", "--variant=minbase", DEBIAN_SUITE, root], timeout=1200)
        finally:
            # Killed half way, it leaves the kernel's file systems mounted in a folder that goes now.
            for name in ("proc", "sys"):
                run(["umount", root / name], check=False)
        # debootstrap wrote the mirror that it used; updates and security fixes come from the same place.
        sources = root / "etc/apt/sources.list"
        mirror = sources.read_text().split()[1]
        security = re.sub(r"/debian/?$", "/debian-security", mirror)
        sources.write_text(
            f"deb {mirror} {DEBIAN_SUITE} main\n"
            f"deb {mirror} {DEBIAN_SUITE}-updates main\n"
            f"deb {security} {DEBIAN_SUITE}-security main\n"
        )
        excluded = ("usr/share/doc", "usr/share/man", "usr/share/locale")
        (root / "etc/dpkg/dpkg.cfg.d/small").write_text(
            "".join(f"path-exclude=/{name}/*\n" for name in excluded)
            + "path-include=/usr/share/doc/*/copyright\n"
        )
        # What Debian's own container images do: services are not started by a package's installation.
        policy = root / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        for name in ("usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists", "var/log"):
            for path in (root / name).iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        run(["tar", "--create", "--numeric-owner", "--file", folder / "rootfs.tar", "--directory", root, "."])
        shutil.rmtree(root)


def _built_recipe() -> cache.Recipe:
    return cache.Recipe(
        "base",
        (("debian", debian_recipe().digest),),
        (*cache.files_of(IMAGE_RECIPES / "base"), ("host-ca.crt", host_certificates())),
    )


def _build_base(engine: Engine, target: str, tag: str, progress: Progress, usually: str) -> None:
    source = debian(engine, progress)
    with TemporaryDirectory(prefix="queueworker-base-") as name, progress.step(f"building {tag}", usually):
        context = Path(name)
        for file in (IMAGE_RECIPES / "base").iterdir():
            shutil.copy2(file, context)
        (context / "host-ca.crt").write_bytes(host_certificates())
        build(engine, context, tag, target=target, arguments={"DEBIAN_IMAGE": source})


def python(engine: Engine, progress: Progress) -> PythonBase:
    """The images to build ours from and on, as BUILDER_IMAGE and BASE_IMAGE. Raises SetupError."""
    if pull(engine, PUBLISHED_PYTHON_IMAGE, progress):
        return PythonBase(
            PUBLISHED_PYTHON_IMAGE, _with_certificates(engine, PUBLISHED_PYTHON_IMAGE, progress)
        )
    digest = _built_recipe().digest
    base = PythonBase(f"queueworker/python:3.11-{digest}", f"queueworker/python-builder:3.11-{digest}")
    for target, tag in (("builder", base.builder), ("runtime", base.runtime)):
        if not engine.has_image(tag):
            _build_base(engine, target, tag, progress, "30 s")
            remove_older(engine, tag)
    return base


def _derived(engine: Engine, tag: str, lines: list[str], files: dict[str, bytes], progress: Progress) -> str:
    if engine.has_image(tag):
        return tag
    with TemporaryDirectory(prefix="queueworker-base-") as name, progress.step(f"building {tag}"):
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        (Path(name) / "Dockerfile").write_text("\n".join(lines) + "\n")
        build(engine, Path(name), tag)
    return tag


def _with_certificates(engine: Engine, reference: str, progress: Progress) -> str:
    files = {"host-ca.crt": host_certificates()}
    recipe = cache.Recipe("certificates", (("base", reference),), tuple(files.items()))
    lines = [
        f"FROM {reference}",
        "COPY host-ca.crt /etc/ssl/host-ca.crt",
        "ENV PIP_CERT=/etc/ssl/host-ca.crt SSL_CERT_FILE=/etc/ssl/host-ca.crt",
    ]
    return _derived(engine, f"queueworker/python-builder:published-{recipe.digest}", lines, files, progress)


def broker(engine: Engine, progress: Progress) -> str:
    """A Redis image for demos and tests, under the one name that manifests use: not root, nothing on disk."""
    if pull(engine, PUBLISHED_BROKER_IMAGE, progress):
        command = '["--save", "", "--appendonly", "no", "--protected-mode", "no", "--bind", "0.0.0.0"]'
        lines = [
            f"FROM {PUBLISHED_BROKER_IMAGE}",
            "USER 65532:65532",
            'ENTRYPOINT ["redis-server"]',
            f"CMD {command}",
        ]
        recipe = cache.Recipe("published-broker", (("lines", "\n".join(lines)),))
        kept = _derived(engine, f"queueworker/redis:published-{recipe.digest}", lines, {}, progress)
    else:
        kept = f"queueworker/redis:{_built_recipe().digest}"
        if not engine.has_image(kept):
            _build_base(engine, "redis", kept, progress, "40 s")
    engine.docker("tag", kept, BROKER_IMAGE)
    remove_older(engine, kept)
    return BROKER_IMAGE
