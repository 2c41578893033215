"""The Go programs that a cluster needs, built from the modules pinned below `go/`, kept in the cache."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e import cache, golang
from e2e.commands import run
from e2e.failure import SetupError
from e2e.locations import GO_MODULES, cache_root
from e2e.progress import Progress
from e2e.versions import KUBERNETES


@dataclass(frozen=True, slots=True)
class Module:
    """One pinned Go module of ours and the programs built from it.

    `packages` maps an import path to the program's file name; `stamp` gives `-X` values; `usually` is the
    cold build time on two cores.
    """

    name: str
    packages: tuple[tuple[str, str], ...]
    usually: str
    stamp: tuple[tuple[str, str], ...] = ()
    tags: str = ""

    def recipe(self) -> cache.Recipe:
        """What determines the built programs."""
        return cache.Recipe(
            self.name,
            (
                ("packages", " ".join(f"{path}={name}" for path, name in self.packages)),
                ("stamp", " ".join(f"{name}={value}" for name, value in self.stamp)),
                ("tags", self.tags),
                ("architecture", golang.architecture()),
                ("build", "1"),
            ),
            cache.files_of(GO_MODULES / self.name),
        )


_MAJOR, _MINOR, _ = KUBERNETES.removeprefix("v").split(".")
_KUBERNETES_STAMP = (
    ("k8s.io/component-base/version.gitVersion", KUBERNETES),
    ("k8s.io/component-base/version.gitMajor", _MAJOR),
    ("k8s.io/component-base/version.gitMinor", _MINOR),
    ("k8s.io/client-go/pkg/version.gitVersion", KUBERNETES),
    ("k8s.io/client-go/pkg/version.gitMajor", _MAJOR),
    ("k8s.io/client-go/pkg/version.gitMinor", _MINOR),
)

MODULES = {
    module.name: module
    for module in (
        Module(
            "kubernetes",
            (
                ("go.etcd.io/etcd/server/v3", "etcd"),
                *(
                    (f"k8s.io/kubernetes/cmd/{name}", name)
                    for name in (
                        "kube-apiserver",
                        "kube-controller-manager",
                        "kube-scheduler",
                        "kube-proxy",
                        "kubelet",
                        "kubeadm",
                        "kubectl",
                    )
                ),
            ),
            "12 min",
            _KUBERNETES_STAMP,
        ),
        Module(
            "containerd",
            tuple(
                (f"github.com/containerd/containerd/v2/cmd/{name}", name)
                for name in ("containerd", "containerd-shim-runc-v2", "ctr")
            ),
            "2 min",
            (("github.com/containerd/containerd/v2/version.Version", "v2.4.2"),),
            "no_btrfs no_zfs no_aufs no_devmapper",
        ),
        Module("crictl", (("sigs.k8s.io/cri-tools/cmd/crictl", "crictl"),), "1 min"),
        Module("coredns", (("queueworker.example/e2e/coredns", "coredns"),), "3 min"),
        Module("pause", (("queueworker.example/e2e/pause", "pause"),), "5 s"),
        Module("kind", (("sigs.k8s.io/kind", "kind"),), "10 s"),
        Module(
            "helm",
            (("helm.sh/helm/v3/cmd/helm", "helm"),),
            "3 min",
            (
                ("helm.sh/helm/v3/internal/version.version", "v3.22.0"),
                *(
                    (f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}", number)
                    for package in ("chartutil", "lint/rules")
                    for part, number in zip(("Major", "Minor"), KUBERNETES[1:].split("."), strict=False)
                ),
            ),
        ),
    )
}
NODE_MODULES = ("kubernetes", "containerd", "crictl", "coredns", "pause")


def missing(names: tuple[str, ...]) -> list[Module]:
    """Those of the named modules whose programs are not in the cache."""
    return [MODULES[name] for name in names if cache.lookup(cache_root(), MODULES[name].recipe()) is None]


def announce(names: tuple[str, ...], progress: Progress) -> None:
    """Say which programs will be built and how long that takes; nothing when all are cached."""
    todo = missing(names)
    if todo:
        listed = ", ".join(f"{module.name} ({module.usually})" for module in todo)
        progress.say(f"to build from Go modules, once, kept in {cache_root()}: {listed}")


def obtain(name: str, progress: Progress) -> Path:
    """The folder with the module's programs, building them when they are not cached. Raises SetupError."""
    return obtain_all((name,), progress)[name]


def obtain_all(names: tuple[str, ...], progress: Progress) -> dict[str, Path]:
    """The folders of several modules' programs, by module; one after the other: each uses every core."""
    root = cache_root()
    todo = missing(names)
    if todo:
        go = golang.find(progress)
        # Several GB that only builds use. It outlives an interrupted build, so that the next one goes on.
        compiled = root / "build" / "go"
        with cache.exclusive(root, "go-build", progress.say):
            for module in todo:
                _build(module, go, compiled, progress)
            shutil.rmtree(compiled, ignore_errors=True)
    return {name: _cached(MODULES[name]) for name in names}


def _build(module: Module, go: golang.Go, compiled: Path, progress: Progress) -> None:
    def build(folder: Path) -> None:
        with progress.step(f"building {module.name} from Go modules with {go.source}", module.usually):
            compile_module(module, go, folder, compiled)

    root = cache_root()
    recipe = module.recipe()
    cache.obtain(root, recipe, build, progress.say)
    with cache.exclusive(root, recipe.name):
        cache.sweep(root, recipe.name, recipe.key)


def _cached(module: Module) -> Path:
    found = cache.lookup(cache_root(), module.recipe())
    if found is None:
        raise SetupError(
            f"{module.name}: its programs went from {cache_root()} after they were built; run it again"
        )
    return found


def compile_module(module: Module, go: golang.Go, folder: Path, compiled: Path) -> None:
    """Build the module's programs into `folder` as static, stripped files under our names for them."""
    flags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in module.stamp)])
    environment = {
        **dict(go.environment),
        "CGO_ENABLED": "0",
        "GOCACHE": str(compiled),
        "GOFLAGS": "",
        "GOWORK": "off",
        "GO111MODULE": "on",
    }
    command: list[str | Path] = ["nice", "-n", "5", go.command, "build", "-mod=readonly", "-trimpath"]
    command += ["-buildvcs=false", "-p", str(os.cpu_count() or 2), "-ldflags", flags, "-tags", module.tags]
    run(
        [*command, "-o", f"{folder}{os.sep}", *(path for path, _ in module.packages)],
        environment=environment,
        directory=GO_MODULES / module.name,
    )
    for path, name in module.packages:
        built = folder / default_name(path)
        if built.name != name:
            built.rename(folder / name)


def default_name(package: str) -> str:
    """The file name that `go build` gives an import path's program: its last part that is no version."""
    parts = package.split("/")
    if len(parts) > 1 and parts[-1].startswith("v") and parts[-1][1:].isdigit():
        parts.pop()
    return parts[-1]


def module_folder(module: str, dependency: str, progress: Progress) -> Path:
    """Where Go keeps the source of `dependency`, at the version that our `module` pins."""
    go = golang.find(progress)
    environment = {**dict(go.environment), "GOFLAGS": "", "GOWORK": "off"}
    run([go.command, "mod", "download", dependency], environment=environment, directory=GO_MODULES / module)
    listed = run(
        [go.command, "list", "-m", "-f", "{{.Dir}}", dependency],
        environment=environment,
        directory=GO_MODULES / module,
    )
    path = Path(listed.stdout.strip())
    if not path.is_dir():
        raise SetupError(f"Go module {dependency}: its source folder {path} is missing after the download")
    return path


TOOLS = {"kind": "kind", "helm": "helm", "kubectl": "kubernetes"}


def tool(name: str, progress: Progress) -> Path:
    """The path of a pinned tool (kind, helm, kubectl), building it when it is not cached."""
    if name not in TOOLS:
        raise SetupError(f"tool {name}: unknown; known are {', '.join(sorted(TOOLS))}")
    return obtain(TOOLS[name], progress) / name
