#!/usr/bin/env bash
# Several "hosts" on this machine, each with its own network address, host name, process ids, /dev/shm and sshd.
#   hosts.sh up DIR NAME...        needs root and iproute2; without openssh-server the hosts have no sshd
#   hosts.sh on DIR NAME CMD...    runs CMD there; files are shared, but /run and TMPDIR=/run/tmp are the host's own
#   hosts.sh down DIR
# Each host is a process tree in namespaces of its own, joined by a veth pair to a bridge in one more namespace. Nothing
# outside them is changed; when the holder processes die, all of it is gone.
set -euo pipefail
what=$1 dir=$2
shift 2
net=10.99.0 # seen only inside the namespaces

pid_of() { awk -v name="$1" '$1 == name {print $2}' "$dir/pids"; }
inside() {
    local pid
    pid=$(pid_of "$1")
    shift
    nsenter -t "$pid" -m -u -i -n -p -r "--wd=$PWD" -- env TMPDIR=/run/tmp "$@"
}
wait_for() { # COMMAND...: until it succeeds, 10 s at most
    for _ in $(seq 200); do "$@" 2>/dev/null && return; sleep 0.05; done
    echo "hosts.sh: gave up waiting for: $*" >&2
    return 1
}

case $what in
up)
    mkdir -p "$dir"/{ssh,log}
    dir=$(cd "$dir" && pwd -P)
    : >"$dir/pids"
    : >"$dir/empty"
    [ -e /etc/hosts ] || : >/etc/hosts # something to mount over; it is not written otherwise
    trap 'code=$?; [ $code = 0 ] || { tail -n 20 "$dir"/log/* >&2; "$0" down "$dir"; }; exit $code' EXIT
    ssh-keygen -q -t ed25519 -N '' -f "$dir/ssh/id" # serves as the hosts' key and as root's
    cat >"$dir/ssh/sshd_config" <<CONF
HostKey /etc/ssh/id
AuthorizedKeysFile /etc/ssh/id.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PidFile none
MaxStartups 100
AcceptEnv *
SetEnv TMPDIR=/run/tmp
LogLevel ERROR
CONF
    cat >"$dir/ssh/ssh_config" <<CONF
Host *
  User root
  IdentityFile /etc/ssh/id
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  ConnectTimeout 5
CONF
    number=0
    { echo "127.0.0.1 localhost"; for name in "$@"; do number=$((number + 1)); echo "$net.$number $name"; done; } >"$dir/hosts"

    setsid unshare --net bash -c 'ip link add br0 type bridge && ip link set br0 up && echo $$ >"$1/switch.pid" && exec sleep infinity' \
        - "$dir" </dev/null >"$dir/log/switch" 2>&1 &
    wait_for test -s "$dir/switch.pid"
    switch=$(cat "$dir/switch.pid")
    echo "switch $switch" >>"$dir/pids"

    number=0
    for name in "$@"; do
        number=$((number + 1))
        # The inner bash is the init of the host. Open MPI names its folder in TMPDIR by process id, and the same ids
        # recur on every host: hence /run/tmp.
        setsid unshare --net --uts --ipc --mount --pid --fork --kill-child bash -c '
            hostname "$2"
            mount --make-rprivate /
            mount --bind "$1/hosts" /etc/hosts
            [ ! -e /etc/resolv.conf ] || mount --bind "$1/empty" /etc/resolv.conf
            mount --bind "$1/ssh" /etc/ssh
            mount -t proc proc /proc
            mount -t sysfs sysfs /sys
            mount -t tmpfs -o mode=1777 tmpfs /dev/shm
            mount -t tmpfs -o mode=755 tmpfs /run
            mkdir -p /run/sshd /run/lock
            mkdir -m 1777 /run/tmp
            ip link set lo up
            echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
            [ ! -x /usr/sbin/sshd ] || /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config &
            touch "$1/$2.ready"
            trap : TERM INT HUP
            while :; do wait -n || sleep 0.2; done' - "$dir" "$name" </dev/null >"$dir/log/$name" 2>&1 &
        outer=$!
        wait_for test -e "$dir/$name.ready"
        inner=$(cut -d' ' -f1 "/proc/$outer/task/$outer/children")
        echo "$name $inner" >>"$dir/pids"
        nsenter -t "$switch" -n ip link add "p$number" type veth peer name eth0 netns "$inner"
        nsenter -t "$switch" -n ip link set "p$number" master br0 up
        nsenter -t "$inner" -n ip addr add "$net.$number/24" dev eth0
        nsenter -t "$inner" -n ip link set eth0 up
    done
    [ ! -x /usr/sbin/sshd ] || for name in "$@"; do wait_for inside "$name" bash -c 'exec 3<>/dev/tcp/127.0.0.1/22'; done
    ;;
on) inside "$@" ;;
down)
    [ -f "$dir/pids" ] || exit 0
    while read -r _ pid; do kill -9 "$pid" 2>/dev/null || true; done <"$dir/pids"
    rm -rf "$dir"
    ;;
*)
    echo "hosts.sh: unknown command $what" >&2
    exit 2
    ;;
esac
