#!/bin/bash
# Starts every rank of this bundle on this machine. From inside the run folder: bash bundle/launch.sh
# It is what `colosseum bundle run` runs; `colosseum.launch.local.ranks` is to this machine what srun is to a cluster.
set -euo pipefail
umask 0027
settings=(
  PYTHONUNBUFFERED=1  # output is unbuffered: the last lines of a killed rank are in its log
  OMP_NUM_THREADS=1  # ranks share a node's cores
)

# --- what the shell of every rank does first (launch/rank.bash) ----------------------------------------------------
# shellcheck disable=SC2329  # the text of both functions is given to each rank's shell
prepare_rank() {
  local entry entries absolute='' cache
  # A run folder is data. An empty or relative entry of PYTHONPATH (some images end theirs with a colon) would make
  # Python import its files.
  IFS=: read -ra entries <<< "${PYTHONPATH:-}"
  for entry in "${entries[@]}"; do [[ $entry != /* ]] || absolute+=${absolute:+:}$entry; done
  if [[ -n $absolute ]]; then export PYTHONPATH=$absolute; else unset PYTHONPATH; fi
  ulimit -c 0 # a core file has the size of a rank's memory
  raise_limit l unlimited # RDMA locks the memory that it registers
  raise_limit s unlimited
  raise_limit n 1048576
  [[ -n ${COLOSSEUM_SCRATCH:-} ]] || return 0
  # Compiled kernels are programs: this user's own folder, or none.
  cache=$COLOSSEUM_SCRATCH/colosseum-${SLURM_JOB_USER:-$UID}
  mkdir -m 700 "$cache" 2> /dev/null
  if [[ -d $cache && -O $cache && ! -L $cache ]]; then
    export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$cache/triton}" CUDA_CACHE_PATH="${CUDA_CACHE_PATH:-$cache/cuda}"
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}"
    export HF_HUB_CACHE="${HF_HUB_CACHE:-$cache/hf-hub}" HF_DATASETS_CACHE="${HF_DATASETS_CACHE:-$cache/hf-datasets}"
  else
    echo "warning: $cache on $(hostname) cannot be made or is not ours (cluster file: paths.scratch): not used" >&2
  fi
  return 0
}

# shellcheck disable=SC2329
raise_limit() { # OPTION WANTED: as far as this process may
  ulimit -S "-$1" "$2" 2> /dev/null || ulimit -S "-$1" "$(ulimit -H "-$1")" 2> /dev/null || true
}

exec env "${settings[@]}" bash -c "$(declare -f prepare_rank raise_limit)
prepare_rank"'
exec "$@"' ranks python -P -m colosseum.launch.local.ranks 1 python -P -m colosseum.runtime bundle
