#!/usr/bin/env bash
# Train on several ranks of this machine, or of HOSTS, under horovodrun.
#   launch/horovodrun.sh 4 train.py --set lr=0.1
#   HOSTS=node1:4,node2:4 launch/horovodrun.sh 8 train.py
# Edit: `--gloo` after horovodrun chooses Gloo, `--mpi` MPI; without either it takes MPI where it was built.
set -euo pipefail
ranks="${1:-}"
[[ "$ranks" =~ ^[0-9]+$ && $# -ge 2 ]] || {
    echo "usage: $0 NUMBER_OF_RANKS script.py [its options]" >&2
    exit 2
}
shift
command -v horovodrun >/dev/null || {
    echo "horovodrun is not on PATH: activate the environment (source .venv/bin/activate) or run hvd-trainer install-horovod" >&2
    exit 1
}
if [ "$(id -u)" = 0 ]; then # Open MPI wants to be asked before it starts as root.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
exec horovodrun -np "$ranks" ${HOSTS:+-H "$HOSTS"} python "$@"
