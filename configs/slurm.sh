#!/usr/bin/env bash
# Build an index in shards, one for each node of a SLURM allocation:
#   sbatch --nodes 4 slurm.sh CORPUS DIR [more options of gpu-rag index]
# CORPUS, DIR, GPU_RAG_CACHE and the environment with gpu-rag[ray] lie on storage that all nodes share.
#SBATCH --job-name=gpu-rag
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
set -euo pipefail
corpus=$1 out=$2
export GPU_RAG_CACHE=${GPU_RAG_CACHE:-$PWD/gpu-rag-cache} RAY_USAGE_STATS_ENABLED=0
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
srun --nodes 1 --ntasks 1 --nodelist "$head" ray start --head --port 6379 --block &
n_ready() { ray status --address "$head:6379" 2>/dev/null | grep -c '^ *1 node_' || true; }
until [ "$(n_ready)" -gt 0 ]; do sleep 2; done
if [ "$SLURM_NNODES" -gt 1 ]; then
    others=$((SLURM_NNODES - 1))
    srun --nodes "$others" --ntasks "$others" --exclude "$head" ray start --address "$head:6379" --block &
fi
until [ "$(n_ready)" -ge "$SLURM_NNODES" ]; do sleep 2; done # else the first node gets all shards
srun --overlap --nodes 1 --ntasks 1 --nodelist "$head" \
    gpu-rag index "$corpus" --out "$out" --shards "$SLURM_NNODES" --on "ray:$head:6379" "${@:3}"
