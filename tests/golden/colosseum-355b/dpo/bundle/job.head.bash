#!/bin/bash
#SBATCH --job-name=colosseum-355b-dpo
#SBATCH --nodes=350
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=1-00:00:00
#SBATCH --partition=batch
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=logs/job-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@224
#SBATCH --requeue

umask=0027
nodes=350
gpus_per_node=8
launch=srun
numa_binding=1
vboost=1
requeue=1
max_restarts=3
margin_s=224
step_s=5
stop_after_step=0
container=/lustre/colosseum/images/colosseum-mcore.sqsh
image=dockerd://colosseum:mcore
mounts=/lustre:/lustre,/lustre/colosseum/data:/lustre/colosseum/data,/raid/scratch:/raid/scratch
venv=''
scratch=/raid/scratch
srun_options=(--mpi=pmix --no-container-mount-home)
modules=()
env_from=()
argv=(python -P -m colosseum.runtime bundle)

settings=(
  PYTHONUNBUFFERED=1  # output is unbuffered: the last lines of a killed rank are in its log
  OMP_NUM_THREADS=1  # ranks share a node's cores
  CUDA_DEVICE_MAX_CONNECTIONS=1  # kernels start in launch order: communication overlaps; Megatron asks for it
  NVTE_FWD_LAYERNORM_SM_MARGIN=16  # layer norms leave SMs to overlapped communication
  NVTE_BWD_LAYERNORM_SM_MARGIN=16  # layer norms leave SMs to overlapped communication
  NCCL_NVLS_ENABLE=0  # NVLink SHARP buffers cost memory and are not used
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # less fragmentation of GPU memory
  TORCH_NCCL_HIGH_PRIORITY=1  # communication kernels go first
  NCCL_P2P_NET_CHUNKSIZE=2097152  # pipeline sends in larger pieces
  NCCL_DEBUG=WARN  # a failed collective says why in the rank's log
  TORCH_NCCL_DUMP_ON_TIMEOUT=1  # a hang leaves the flight recorder's traces in attempts/NNN/stacks
  TORCH_FR_BUFFER_SIZE=2000  # collectives the flight recorder keeps; torch has had two names for it
  TORCH_NCCL_TRACE_BUFFER_SIZE=2000  # collectives the flight recorder keeps; torch has had two names for it
  # of cluster dgx-h100
  'NCCL_IB_HCA==mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11'
  NCCL_IB_TIMEOUT=22
  NCCL_IB_QPS_PER_CONNECTION=4
  NCCL_SOCKET_IFNAME=eth0
)

