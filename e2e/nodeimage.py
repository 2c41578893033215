"""The image of a cluster's nodes: pulled where a registry answers, else built from our programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from e2e import baseimages, cache, programs
from e2e.commands import run
from e2e.engine import Engine
from e2e.failure import SetupError
from e2e.locations import GO_MODULES, NODE_RECIPES, cache_root
from e2e.progress import Progress
from e2e.versions import KUBERNETES, PUBLISHED_NODE_IMAGE

ENTRYPOINT = '["/usr/local/bin/entrypoint", "/sbin/init"]'
# The last part of an image's name, as kubeadm lists it, to the module whose program it holds.
IMAGE_PROGRAMS = {
    "kube-apiserver": "kubernetes",
    "kube-controller-manager": "kubernetes",
    "kube-scheduler": "kubernetes",
    "kube-proxy": "kubernetes",
    "etcd": "kubernetes",
    "coredns": "coredns",
    "pause": "pause",
}


def obtain(engine: Engine, progress: Progress) -> str:
    """The reference of a node image in the engine. Raises SetupError when it can be had neither way."""
    tag = f"queueworker/node:{KUBERNETES}-{_recipe().digest}"
    for reference in (PUBLISHED_NODE_IMAGE, tag):
        if engine.has_image(reference):
            return reference
    if baseimages.pull(engine, PUBLISHED_NODE_IMAGE, progress):
        return PUBLISHED_NODE_IMAGE
    with cache.exclusive(cache_root(), "node-image", progress.say):
        if engine.has_image(tag):
            return tag
        folders = programs.obtain_all((*programs.NODE_MODULES, "kind"), progress)
        with TemporaryDirectory(prefix="queueworker-node-") as name:
            _build(engine, Path(name), folders, tag, progress)
        baseimages.remove_older(engine, tag)
    return tag


def is_ready(engine: Engine) -> bool:
    """Whether a node image, pulled or built, is in the engine already."""
    return engine.has_image(PUBLISHED_NODE_IMAGE) or engine.has_image(
        f"queueworker/node:{KUBERNETES}-{_recipe().digest}"
    )


def _recipe() -> cache.Recipe:
    facts = [(name, programs.MODULES[name].recipe().digest) for name in programs.NODE_MODULES]
    facts += [("debian", baseimages.debian_recipe().digest), ("recipe", "1")]
    kind = tuple((f"kind/{name}", content) for name, content in cache.files_of(GO_MODULES / "kind"))
    return cache.Recipe("node-image", tuple(facts), (*cache.files_of(NODE_RECIPES), *kind))


def control_plane_images(kubeadm: Path) -> dict[str, str]:
    """Program to image reference, as this kubeadm expects them on a node."""
    listed = run([kubeadm, "config", "images", "list", "--kubernetes-version", KUBERNETES]).stdout.split()
    found = {reference.rpartition("/")[2].partition(":")[0]: reference for reference in listed}
    if found.keys() != IMAGE_PROGRAMS.keys():
        raise SetupError(
            f"kubeadm {KUBERNETES} lists the images {', '.join(sorted(found))}; "
            f"programs are pinned for {', '.join(sorted(IMAGE_PROGRAMS))}"
        )
    return found


def _build(engine: Engine, context: Path, folders: dict[str, Path], tag: str, progress: Progress) -> None:
    debian = baseimages.debian(engine, progress)
    base = f"{tag}-base"
    images = control_plane_images(folders["kubernetes"] / "kubeadm")
    with progress.step("building the base of the node image", "45 s"):
        files = programs.module_folder("kind", "sigs.k8s.io/kind", progress) / "images" / "base" / "files"
        run(["cp", "--recursive", "--no-preserve=mode", files, context / "files"])
        (context / "bin").mkdir()
        for module in ("kubernetes", "containerd", "crictl"):
            for built in folders[module].iterdir():
                if module != "kubernetes" or built.name in {"kubelet", "kubeadm", "kubectl"}:
                    _place(built, context / "bin" / built.name)
        baseimages.build(
            engine,
            context,
            base,
            dockerfile=NODE_RECIPES / "Dockerfile",
            arguments={
                "DEBIAN_IMAGE": debian,
                "KUBERNETES_VERSION": KUBERNETES,
                "PAUSE_IMAGE": images["pause"],
            },
        )
    with progress.step("building the control plane's images", "30 s"):
        for program, reference in images.items():
            _program_image(engine, folders[IMAGE_PROGRAMS[program]] / program, reference, debian, context)
    with progress.step("importing the control plane's images into the node image", "40 s"):
        _import_and_commit(engine, base, tag, list(images.values()))
    engine.docker("rmi", base, *images.values(), check=False)


def _place(source: Path, target: Path) -> None:
    if source.name.startswith("."):
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _program_image(engine: Engine, program: Path, reference: str, debian: str, parent: Path) -> None:
    context = parent / f"image-{program.name}"
    context.mkdir()
    _place(program, context / program.name)
    if program.name == "kube-proxy":
        dockerfile = NODE_RECIPES / "kube-proxy.Dockerfile"
        baseimages.build(
            engine, context, reference, dockerfile=dockerfile, arguments={"DEBIAN_IMAGE": debian}
        )
        return
    # CoreDNS is addressed as /coredns by its manifest; the others are looked up in PATH.
    (context / "Dockerfile").write_text(
        f'FROM scratch\nCOPY {program.name} /{program.name}\nENV PATH=/\nENTRYPOINT ["/{program.name}"]\n'
    )
    baseimages.build(engine, context, reference)


def _import_and_commit(engine: Engine, base: str, tag: str, references: list[str]) -> None:
    container = engine.docker(
        "create", "--privileged", "--entrypoint", "sleep", base, "infinity"
    ).stdout.strip()
    try:
        engine.docker("start", container)
        engine.docker("exec", "--detach", container, "containerd")
        engine.docker(
            "exec",
            container,
            "sh",
            "-c",
            "for i in $(seq 150); do ctr version >/dev/null 2>&1 && exit; sleep 0.2; done; exit 1",
        )
        # Not unpacked: overlayfs cannot stand on the engine's overlayfs. In a node, /var is a volume.
        load = f"exec --interactive {container} ctr --namespace k8s.io images import --no-unpack -"
        environment = {**os.environ, **engine.environment}
        with subprocess.Popen(
            ["docker", "save", *references], stdout=subprocess.PIPE, env=environment
        ) as saved:
            loaded = subprocess.run(
                ["docker", *load.split()],
                stdin=saved.stdout,
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
        if saved.returncode != 0 or loaded.returncode != 0:
            raise SetupError(f"node image: importing {', '.join(references)} failed: {loaded.stderr.strip()}")
        listed = engine.docker(
            "exec", container, "ctr", "--namespace", "k8s.io", "images", "list", "--quiet"
        ).stdout
        absent = [reference for reference in references if reference not in listed.split()]
        if absent:
            raise SetupError(
                f"node image: {', '.join(absent)} absent after the import; found {listed.split()}"
            )
        stop = (
            "pkill -x containerd; "
            "for i in $(seq 50); do pgrep -x containerd >/dev/null || exit 0; sleep 0.2; done; exit 1"
        )
        engine.docker("exec", container, "sh", "-c", stop)
        engine.docker("commit", "--change", f"ENTRYPOINT {ENTRYPOINT}", "--change", "CMD []", container, tag)
    finally:
        engine.docker("rm", "--force", "--volumes", container, check=False)
