#!/usr/bin/env bash
# A sweep on Slurm: one Ray for the job, started on its nodes and ended with it.
#
#   sbatch --nodes=4 --gpus-per-node=8 slurm.sh experiments/t1_imagenet_c_mild.yaml /scratch/$USER/results
#
# Submit it again after a time limit: only what is missing runs. The results folder must be on a file system that the
# first node can write; nothing else is shared. The nodes must be the job's alone (--exclusive): `ray symmetric-run`
# starts on no node that runs a Ray already, and ends every Ray process there with `ray stop`.
#SBATCH --job-name=deyo-sweep
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
set -euo pipefail
umask 077
SPEC=${1:?usage: sbatch slurm.sh SPEC RESULTS}
RESULTS=${2:?usage: sbatch slurm.sh SPEC RESULTS}
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n') # of this job alone, never written down
export RAY_AUTH_TOKEN
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1')
HEAD_IP=$(srun --nodes=1 --ntasks=1 --nodelist="$HEAD" hostname --ip-address | awk '{print $1}')
srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 \
  ray symmetric-run --address "$HEAD_IP:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus="${SLURM_CPUS_PER_TASK:-1}" --disable-usage-stats -- \
  deyo-sweep run "$SPEC" --address "$HEAD_IP:6379" --results "$RESULTS"
