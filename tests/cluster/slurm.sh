#!/usr/bin/env bash
# A SLURM of its own on hosts made by hosts.sh: `head` (slurmctld) and node1 .. nodeN (slurmd), all state in DIR.
#   slurm.sh up DIR [NODES] [CPUS]      then: SLURM_CONF=DIR/slurm.conf hosts.sh on DIR/hosts head sinfo
#   slurm.sh down DIR
# Needs root and Debian's slurmctld, slurmd, slurm-client, munge (and libpmix-dev for srun --mpi=pmix).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
what=$1 dir=$2 nodes=${3:-2} cpus=${4:-2}
on() { "$here/hosts.sh" on "$dir/hosts" "$@"; }

down() {
    "$here/hosts.sh" down "$dir/hosts" # the daemons and jobs die with their hosts
    if [ -s "$dir/munged.pid" ]; then
        kill "$(cat "$dir/munged.pid")" 2>/dev/null || true
    fi
    rm -rf "$dir"
}

if [ "$what" = down ]; then
    down
    exit
fi
mkdir -p "$dir"
dir=$(cd "$dir" && pwd -P)
if [ ${#dir} -gt 60 ]; then
    echo "slurm.sh: $dir is too long for the path of a socket (60 at most)" >&2
    exit 2
fi
trap 'code=$?; [ $code = 0 ] || { tail -n 20 "$dir"/log/* >&2; down; }; exit $code' EXIT
mkdir -p "$dir"/{state,log,spool,run}
chmod 755 "$dir"
names=$(seq -f 'node%g' "$nodes")
# shellcheck disable=SC2086 # one word a node
"$here/hosts.sh" up "$dir/hosts" head $names

# One munged for all: its socket lies in the file system that the hosts share. --force: it refuses a socket below a folder
# that others cannot enter, and temporary folders are such.
dd if=/dev/urandom of="$dir/munge.key" bs=128 count=1 status=none
chmod 400 "$dir/munge.key"
/usr/sbin/munged --force --key-file="$dir/munge.key" --socket="$dir/run/munge.sock" --pid-file="$dir/munged.pid" \
    --log-file="$dir/log/munged.log" --seed-file="$dir/run/munged.seed"

printf '#!/bin/sh\necho export TMPDIR=/run/tmp\n' >"$dir/taskprolog"
chmod 755 "$dir/taskprolog"
address() { awk -v name="$1" '$2 == name {print $1}' "$dir/hosts/hosts"; }
{
    cat <<CONF
ClusterName=test
SlurmctldHost=head($(address head))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/run/munge.sock,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=$dir/taskprolog
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
TmpFS=/run/tmp
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=3
InactiveLimit=0
SlurmctldTimeout=60
SlurmdTimeout=60
PropagateResourceLimits=NONE
CONF
    for name in $names; do echo "NodeName=$name NodeAddr=$(address "$name") CPUs=$cpus RealMemory=4000 State=UNKNOWN"; done
    echo "PartitionName=main Nodes=node[1-$nodes] Default=YES MaxTime=60 DefaultTime=10 State=UP"
} >"$dir/slurm.conf"
# slurmd 22.05 loads a cgroup plugin whatever else is set; version 1 loads where no cgroups are mounted, too.
echo CgroupPlugin=cgroup/v1 >"$dir/cgroup.conf"
export SLURM_CONF="$dir/slurm.conf"

on head /usr/sbin/slurmctld -c -i -f "$SLURM_CONF"
for name in $names; do
    mkdir -p "$dir/spool/$name"
    on "$name" /usr/sbin/slurmd -f "$SLURM_CONF"
done
for _ in $(seq 300); do
    idle=$(on head sinfo -h -N -o '%N %T' 2>/dev/null | grep -c ' idle$') || idle=0
    [ "$idle" = "$nodes" ] && exit 0
    sleep 0.1
done
echo "slurm.sh: only $idle of $nodes nodes came up" >&2
exit 1
