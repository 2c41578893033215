"""Every version that a cluster is made of. The Go programs' own are in the go.mod files below `go/`."""

from __future__ import annotations

KUBERNETES = "v1.37.2"

# The node image that this release of kind was published with.
PUBLISHED_NODE_IMAGE = (
    "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
)
PUBLISHED_PYTHON_IMAGE = "python:3.11-slim"
PUBLISHED_BROKER_IMAGE = "redis:7.2-alpine"

DEBIAN_SUITE = "bookworm"

# Fetched as a Go module where no Go, or one from before toolchain switching (1.21), is installed.
# The hashes are those of the public checksum database (`h1:`, over the zip's files).
GO_TOOLCHAIN = "1.26.8"
GO_TOOLCHAIN_SUMS = {
    "amd64": "h1:ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM=",
    "arm64": "h1:sYL/O6MqS68ML0kjsQ36WoYIpJqkw60TxizWUYUKQMc=",
}

# The servers of `python -m e2e servers`: (Debian suite, package, program, line). A stable suite moves the
# last number only; where a suite moves on to another line, name one here that still has it.
DEBIAN_MIRROR = "http://deb.debian.org/debian"
SERVERS = {
    "redis-8": ("trixie", "redis-server", "redis-server", "8"),
    "valkey-8": ("trixie", "valkey-server", "valkey-server", "8"),
    "valkey-9": ("forky", "valkey-server", "valkey-server", "9"),
}
