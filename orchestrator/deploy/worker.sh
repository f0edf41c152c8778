#!/usr/bin/env bash
# Another host of the cluster that head.sh started: ./worker.sh 10.0.0.1:6379 [ARGS for `ray start`]
# It needs the same versions of Python and Ray, this project's dependencies, and the head's token in ~/.ray/auth_token.
# Each host keeps its own cache of prepared data and checkpoints (DEYO_CACHE); nothing has to be shared.
set -euo pipefail
umask 077
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
HEAD=${1:?usage: worker.sh HEAD:6379}; shift
exec ray start --address="$HEAD" --disable-usage-stats --block "$@"
