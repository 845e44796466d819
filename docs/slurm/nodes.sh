#!/usr/bin/env bash
#SBATCH --job-name=bertrio
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#
# Fine-tune members on all nodes of this job, and run the other stages on its first node:
#     sbatch docs/slurm/nodes.sh [MEMBER...]
#
# All nodes see this repository. If they share no such folder, set LOCAL_CLONES=1: each node then has a clone at this
# path, of the same commit, with a DVC cache that all of them see (dvc cache dir --local ...).
set -euo pipefail

dvc repro prefinetune teach
if [ -n "${LOCAL_CLONES:-}" ]; then # srun gives its input to every node
    srun bash -c 'lock=$(cat) && echo "$lock" >dvc.lock && dvc checkout --force check split prefinetune teach' <dvc.lock
fi

MAIN=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MAIN PER_NODE=${SLURM_GPUS_ON_NODE:-1} PORT=$((20000 + SLURM_JOB_ID % 10000))
for member in "${@:-base}"; do
    srun bash -c 'accelerate launch --multi_gpu --mixed_precision no --dynamo_backend no --num_machines "$SLURM_NNODES" \
        --num_processes $((SLURM_NNODES * PER_NODE)) --machine_rank "$SLURM_NODEID" \
        --main_process_ip "$MAIN" --main_process_port "$PORT" stages/finetune.py --member "$0"' "$member"
    dvc commit --force "finetune@$member" # as if dvc repro had run it
done
dvc repro
