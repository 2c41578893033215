"""A NATS image for tests: nothing but the server of this environment, which is one static program."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from e2e import baseimages
from e2e.engine import Engine
from e2e.failure import SetupError
from e2e.progress import Progress

NATS_IMAGE = "queueworker/nats:dev"
#: Not root, and its data where a pod mounts a volume.
_DOCKERFILE = """\
FROM scratch
COPY nats-server /nats-server
USER 65532:65532
EXPOSE 4222
ENTRYPOINT ["/nats-server"]
CMD ["--jetstream", "--store_dir", "/data"]
"""


def nats(engine: Engine, progress: Progress) -> str:
    """Build it if this server has no image yet. Raises SetupError."""
    program = Path(sys.executable).parent / "nats-server"
    if not program.is_file():
        raise SetupError(f"{program}: is not there; run scripts/environment.sh dev")
    digest = hashlib.sha256(program.read_bytes() + _DOCKERFILE.encode()).hexdigest()[:12]
    kept = f"queueworker/nats:{digest}"
    if not engine.has_image(kept):
        with TemporaryDirectory(prefix="queueworker-nats-") as name, progress.step(f"building {kept}"):
            shutil.copy2(program, Path(name) / "nats-server")
            (Path(name) / "Dockerfile").write_text(_DOCKERFILE)
            baseimages.build(engine, Path(name), kept)
    engine.docker("tag", kept, NATS_IMAGE)
    baseimages.remove_older(engine, kept)
    return NATS_IMAGE
