#!/usr/bin/env bash
# Build Horovod against the torch of the active environment and install it.
#   launch/install_horovod.sh [--no-repairs] [--rebuild] [--cache DIR] [--mpicxx PATH] [--jobs N] [--dry-run]
# PYTHON=... names another interpreter; needs only its standard library, torch and a C++ compiler.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m hvd_trainer.launcher.install_horovod "$@"
