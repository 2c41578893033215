"""Our own images, built from this clone under the fixed names that tests and the demo use."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from e2e import baseimages, cache, natsimage
from e2e.cluster import Cluster, load
from e2e.engine import Engine
from e2e.failure import SetupError
from e2e.locations import IMAGE_RECIPES, REPOSITORY, cache_root
from e2e.progress import Progress

WORKER_IMAGE = "queueworker/worker:dev"
OPERATOR_IMAGE = "queueworker/operator:dev"
DEMO_WORKER_IMAGE = "queueworker/demo-worker:dev"
ALL_IMAGES = (
    OPERATOR_IMAGE,
    WORKER_IMAGE,
    DEMO_WORKER_IMAGE,
    baseimages.BROKER_IMAGE,
    natsimage.NATS_IMAGE,
)
# Settings of the host's pip by which a build finds packages; certificates are in the builder image.
PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image and its sizes, in units of 10^6 bytes."""

    reference: str
    megabytes: float
    above_base: float


def build_all(engine: Engine, progress: Progress) -> list[BuiltImage]:
    """Build every image of ours; unchanged layers come from the engine's cache. Raises SetupError."""
    with cache.exclusive(cache_root(), "images", progress.say):
        return _build_all(engine, progress)


def build_and_load(cluster: Cluster, images: Sequence[str], progress: Progress) -> list[BuiltImage]:
    """Build every image of ours and put `images` into the nodes of the cluster. Raises SetupError.

    The names are the same in all clones, so no other clone builds in between.
    """
    with cache.exclusive(cache_root(), "images", progress.say):
        built = _build_all(cluster.engine, progress)
        load(cluster.name, images, progress)
        return built


def _build_all(engine: Engine, progress: Progress) -> list[BuiltImage]:
    base = baseimages.python(engine, progress)
    arguments = {"BASE_IMAGE": base.runtime, "BUILDER_IMAGE": base.builder}
    arguments |= {name: os.environ[name] for name in PIP_SETTINGS if os.environ.get(name)}
    for name, tag in (("worker", WORKER_IMAGE), ("operator", OPERATOR_IMAGE)):
        dockerfile = IMAGE_RECIPES / name / "Dockerfile"
        with progress.step(f"building {tag}", "1 min cold, 5 s with layers cached"):
            # The stage that installs is tagged too, so that its layers outlive the pruning below.
            stage = f"queueworker/{name}-build:dev"
            for target, reference in (("build", stage), (None, tag)):
                baseimages.build(
                    engine,
                    REPOSITORY,
                    reference,
                    target=target,
                    dockerfile=dockerfile,
                    arguments=arguments,
                )
    with progress.step(f"building {DEMO_WORKER_IMAGE}"):
        baseimages.build(
            engine,
            REPOSITORY,
            DEMO_WORKER_IMAGE,
            dockerfile=REPOSITORY / "examples" / "Dockerfile",
            arguments={"WORKER_IMAGE": WORKER_IMAGE},
        )
    brokers = (baseimages.broker(engine, progress), natsimage.nats(engine, progress))
    if engine.private:
        # What older builds left. The age keeps away from builds that run beside this one.
        engine.docker("image", "prune", "--force", "--filter", "until=2h", check=False)
    below = _size(engine, base.runtime)
    built = [(tag, below) for tag in (WORKER_IMAGE, OPERATOR_IMAGE, DEMO_WORKER_IMAGE)]
    return [_measured(engine, tag, size) for tag, size in (*built, *((one, 0.0) for one in brokers))]


def _measured(engine: Engine, reference: str, below: float) -> BuiltImage:
    size = _size(engine, reference)
    return BuiltImage(reference, size, size - below)


def _size(engine: Engine, reference: str) -> float:
    documents = json.loads(engine.docker("image", "inspect", reference).stdout)
    if not documents:
        raise SetupError(f"image {reference}: went from the engine after it was built")
    return float(documents[0]["Size"]) / 1e6
