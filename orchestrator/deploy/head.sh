#!/usr/bin/env bash
# The head of a cluster that stays up: a machine with several GPUs for several people, or the first of several hosts.
# (For one person on one machine nothing of this is needed: `deyo-sweep run SPEC` starts what it needs.)
#
#   ./head.sh                   this machine alone
#   ./head.sh 10.0.0.1 [ARGS]   with that address, for others to join with worker.sh; ARGS go to `ray start`
#
# The token lies in ~/.ray/auth_token (mode 0600). Copy it to the same place on every host and laptop that may use
# the cluster. Tokens are not encrypted on the way: keep the network private, or put TLS or a VPN around it.
# The dashboard (Ray Jobs) listens on loopback; from a laptop: ssh -L 8265:127.0.0.1:8265 HEAD
set -euo pipefail
umask 077
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
ADDRESS=${1:-}; [ $# -eq 0 ] || shift
TOKEN=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
if [ -z "${RAY_AUTH_TOKEN:-}" ] && [ ! -s "$TOKEN" ]; then
  mkdir -p "$(dirname "$TOKEN")"
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$TOKEN"
fi
[ ! -e "$TOKEN" ] || chmod 600 "$TOKEN"
if [ -z "$ADDRESS" ]; then
  export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 # Ray's switch for "no other host joins": listen on loopback alone
  ADDRESS=127.0.0.1
fi
exec ray start --head --node-ip-address="$ADDRESS" --port="${PORT:-6379}" --dashboard-host=127.0.0.1 \
  --disable-usage-stats --block "$@"
