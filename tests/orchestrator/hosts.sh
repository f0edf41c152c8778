#!/usr/bin/env bash
# Three hosts on one machine, each with its own address, processes, temp and cache folders, running a real Ray cluster.
#
#   hosts.sh up                    create the network: head 10.78.0.1, w1 10.78.0.2, w2 10.78.0.3
#   hosts.sh start                 start Ray on all three, CPUS cores each
#   hosts.sh run CMD...            run a command on the head
#   hosts.sh poweroff head|w1|w2   kill a host at once
#   hosts.sh partition w1|w2       cut a host's cable; `heal` plugs it in again
#   hosts.sh rejoin w1|w2          start Ray again on a host
#   hosts.sh down                  end everything that this script started, and remove the network
#
# Ray is started by the scripts in orchestrator/deploy. Needs root, iproute2 and `ray` on PATH. State lives in $HOSTS_DIR. Ray is told to notice a dead host within seconds.
set -euo pipefail
D=${HOSTS_DIR:?}; P=dst; NET=10.78.0; CPUS=${CPUS:-1}
mkdir -p "$D/home" "$D/ray" "$D/private"
export HOME="$D/home" RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token RAY_TMPDIR="$D/ray" DEYO_CACHE="$D/private/cache"
export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=3
export RAY_grpc_client_keepalive_time_ms=5000 RAY_grpc_client_keepalive_timeout_ms=5000
export RAY_gcs_rpc_server_reconnect_timeout_s=10
: "${RAY_AUTH_TOKEN:?}"
address() { case $1 in head) echo $NET.1;; w1) echo $NET.2;; w2) echo $NET.3;; *) echo "no host $1" >&2; exit 2;; esac; }
inner() { pgrep -P "$(cat "$D/$1.pid")" | head -1; }
DEPLOY=$(cd "$(dirname "$0")/../../orchestrator/deploy" && pwd)
node() { # node NAME COMMAND...
  local n=$1; shift; rm -rf "${D:?}/$n.rt"; mkdir -p "$D/$n.rt"; : >"$D/$n.log"
  setsid ip netns exec $P-"$n" unshare --pid --mount --uts --fork --mount-proc --kill-child bash -c \
    "hostname $n; mount --bind $D/$n.rt $RAY_TMPDIR; mount -t tmpfs -o size=1g tmpfs /dev/shm;
     mount -t tmpfs -o size=500m tmpfs $D/private;
     exec $* --num-cpus=$CPUS --num-gpus=0 --object-store-memory=100000000" \
    </dev/null >"$D/$n.log" 2>&1 &
  echo $! >"$D/$n.pid"
}
await() { for _ in $(seq 600); do grep -q 'Ray runtime started' "$D/$1.log" && return 0; sleep .2; done; tail -5 "$D/$1.log" >&2; exit 1; }
worker() { node "$1" "$DEPLOY/worker.sh" $NET.1:6379 --node-ip-address="$(address "$1")"; }
kill_host() { [ -e "$D/$1.pid" ] && kill -9 "$(cat "$D/$1.pid")" 2>/dev/null || true; rm -f "$D/$1.pid"; }
case ${1:-} in
  up)
    ip netns add $P-sw; ip -n $P-sw link set lo up; ip -n $P-sw link add br0 type bridge; ip -n $P-sw link set br0 up
    for n in head w1 w2; do
      ip netns add $P-$n; ip -n $P-sw link add v$n type veth peer name eth0 netns $P-$n; ip -n $P-sw link set v$n master br0 up
      ip -n $P-$n link set lo up; ip -n $P-$n addr add "$(address $n)/24" dev eth0; ip -n $P-$n link set eth0 up
    done;;
  start)
    node head "$DEPLOY/head.sh" $NET.1; await head
    worker w1; worker w2; await w1; await w2;;
  rejoin) worker "$2"; await "$2";;
  run) shift; exec nsenter -t "$(inner head)" --net --pid --mount --uts --wdns="$PWD" "$@";;
  poweroff) kill_host "$2";;
  partition) ip -n $P-sw link set "v$2" down;;
  heal) ip -n $P-sw link set "v$2" up;;
  down)
    for n in head w1 w2; do kill_host $n; done; sleep 1
    for n in head w1 w2 sw; do ip netns del $P-$n 2>/dev/null || true; done;;
  *) sed -n '2,13p' "$0"; exit 2;;
esac
