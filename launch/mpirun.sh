#!/usr/bin/env bash
# Train on several ranks under mpirun; works with and without Horovod.
#   launch/mpirun.sh 4 train.py --set lr=0.1
#   HOSTS=node1:4,node2:4 launch/mpirun.sh 8 train.py
# Edit: Open MPI refuses more ranks than cores unless `--oversubscribe` is added.
set -euo pipefail
ranks="${1:-}"
[[ "$ranks" =~ ^[0-9]+$ && $# -ge 2 ]] || {
    echo "usage: $0 NUMBER_OF_RANKS script.py [its options]" >&2
    exit 2
}
shift
command -v mpirun >/dev/null || {
    echo "mpirun is not on PATH: activate the environment (source .venv/bin/activate) or load the site's MPI" >&2
    exit 1
}
if [ "$(id -u)" = 0 ]; then # Open MPI wants to be asked before it starts as root.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
exec mpirun -np "$ranks" ${HOSTS:+--host "$HOSTS"} python "$@"
