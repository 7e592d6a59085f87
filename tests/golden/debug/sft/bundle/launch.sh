#!/bin/bash
# Starts every rank of this bundle on this machine. From inside the run folder: bash bundle/launch.sh
# It is what `colosseum bundle run` runs; `colosseum.launch.local.ranks` is to this machine what srun is to a cluster.
set -euo pipefail
umask 0027
settings=(
  PYTHONUNBUFFERED=1  # a killed rank's last words reach its log
  OMP_NUM_THREADS=1  # ranks share a node's cores
)
exec env "${settings[@]}" python -m colosseum.launch.local.ranks 1 python -m colosseum.runtime bundle
