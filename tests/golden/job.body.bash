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

# --- from here on every job script is the same (launch/slurm/job.bash) --------------------------------------------
set -uo pipefail
trap '' USR1 # until the ranks run there is nothing to save: `jobs requeue` must not end a script that begins
umask "$umask"
export SLURM_UMASK=$umask # which srun gives the ranks
run=$(pwd -P)
# Of an array, the plain job id of one element can mean the whole array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
job=${job:-$SLURM_JOB_ID}
requeue_by_hand="to continue: colosseum jobs requeue ${run##*/}"

say() { printf '%s %s\n' "$(date -u +%FT%TZ)" "$*"; }

# The records of the run folder: colosseum/jobscript.py, a copy in the bundle. -I: nothing else of the run folder is
# imported. The batch host's own python3, whatever a venv or an image has.
if ! python=$(command -v python3) || ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2> /dev/null; then
  say "stopped: $(hostname) has no python3 (3.6 or later), with which this script reads and writes the run's records"
  exit 76
fi
record() { # COMMAND WORD…
  "$python" -IB -c 'import sys; sys.path.insert(0, "bundle/lib"); from colosseum.jobscript import main
sys.exit(main(sys.argv[1:]))' "$@"
}

write_outcome() { # KIND RETRY REASON RANK: unless a rank wrote it already (first writer wins)
  record write-outcome "$attempt" "$1" "$2" "${4:--}" "$3"
}

# --- before the ranks ---

own_run() {
  local whose
  whose=$(record own "$job" "${SLURM_RESTART_COUNT:-0}" $$) || { say "stopped: $whose"; exit 76; }
}

begin_attempt() {
  attempt=0
  mkdir -p attempts logs
  until mkdir "attempts/$(printf %03d "$attempt")" 2> /dev/null; do
    ((attempt++ < 9999)) || { say "cannot make a folder in $run/attempts: is the disk full?"; exit 1; }
  done
  attempt_folder=attempts/$(printf %03d "$attempt")
  mkdir -p "$attempt_folder/stacks"
  log_begins=$(stat -c %s "logs/job-$SLURM_JOB_ID.out" 2> /dev/null || echo 0)
  started_from=$(record begin "$attempt" "$job" "${SLURM_RESTART_COUNT:-0}" "$SLURM_JOB_NODELIST") \
    || { say "cannot write in $run/$attempt_folder: is the disk full?"; exit 1; }
  # Of a script that was submitted by hand, and of the jobs of an array.
  [[ ${SLURM_JOB_NAME:-} == "${run##*/}" ]] || scontrol update "JobId=$job" "JobName=${run##*/}" 2> /dev/null
  say "attempt $attempt of ${run##*/} as job $job on $SLURM_JOB_NODELIST, from step $started_from"
}

stop_if_looping() { # ATTEMPTS CONSEQUENCE
  (($1 > max_restarts)) || return 0
  say "stopped: $1 attempts in a row saved nothing after step $(record saved); $2; $requeue_by_hand"
  write_outcome crash false "$1 attempts in a row saved nothing after step $(record saved)"
  exit 76
}

stop_if_complete() {
  local number
  ! number=$(record complete) || { say "this run is complete (attempt $number): nothing to do"; exit 0; }
}

stop_without_image() { # pyxis takes what begins with / or ./ as a file; a name is pulled by the nodes
  [[ $container == /* || $container == ./* ]] && [[ ! -e $container ]] || return 0
  local reason="container image $container is not there (cluster file: container); import one that holds the \
engine: enroot import -o $container $image"
  write_outcome config_error false "$reason"
  say "stopped: $reason"
  exit 76
}

stop_without_variables() { # their values are in no bundle and on no command line
  local name reason
  for name in "${env_from[@]}"; do
    [[ -z ${!name:-} ]] || continue
    reason="variable $name (cluster file: env_from) is not set; export it where you submit the job"
    write_outcome config_error false "$reason"
    say "stopped: $reason; $requeue_by_hand"
    exit 76
  done
}

bare_metal() {
  if ((${#modules[@]})); then
    set +u
    # shellcheck source=/dev/null
    [[ $(type -t module) == function ]] || . /etc/profile
    module load "${modules[@]}" || { say "module load ${modules[*]} failed"; exit 1; }
    set -u
  fi
  [[ -z $venv ]] || export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv"
}

boost_clocks() {
  srun --ntasks-per-node=1 --ntasks="$nodes" sudo -n nvidia-smi boost-slider --vboost 1 \
    || say "warning: vboost could not be set; the GPUs run at their default clocks"
}

# --- the ranks ---

run_ranks() {
  local tasks=$((nodes * gpus_per_node)) options=() hosts task name=rank trace
  [[ $launch == srun ]] || { tasks=$nodes name=node; }
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  # A bad exit ends all ranks: the others would wait in a collective. cpu-bind none: the ranks bind themselves, or
  # all use the node (srun would give each one core). srun does not inherit cpus-per-task since 22.05. Export and
  # distribution are said because variables of the site (SLURM_EXPORT_ENV, SLURM_DISTRIBUTION) would change them.
  options=(--nodes="$nodes" --ntasks="$tasks" --ntasks-per-node=$((tasks / nodes)) --kill-on-bad-exit=1 --wait=60
    --cpu-bind=none --distribution=block --export=ALL --output="$attempt_folder/$name-%5t.log" --open-mode=append "${srun_options[@]}")
  [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || options+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
  [[ -z $container ]] || options+=(--container-image="$container" --container-mounts="${run%/*}:${run%/*}${mounts:+,$mounts}")
  task=$(declare -f prepare_rank raise_limit)
  # shellcheck disable=SC2016  # expanded by each task
  task+='
prepare_rank
cd "$COLOSSEUM_RUN" || exit 76
'
  # shellcheck disable=SC2016
  [[ $launch == torchrun ]] || task+='export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$COLOSSEUM_GPUS_PER_NODE'
  if [[ $launch == torchrun ]]; then
    # torchrun itself would die of USR1; its workers set their own handler. It has to import nothing of the run folder,
    # and Python before 3.11 has no -P: it runs in /.
    # shellcheck disable=SC2016
    task+='trap "" USR1
cd /
exec python -m torch.distributed.run --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" \
  --nproc-per-node="$COLOSSEUM_GPUS_PER_NODE" --master-port="$MASTER_PORT" --no-python \
  bash -c "cd \"\$COLOSSEUM_RUN\" && exec \"\$@\"" rank "$@"'
  elif [[ $numa_binding == 1 ]]; then
    # shellcheck disable=SC2016
    task+='
socket=$((SLURM_LOCALID * 2 / COLOSSEUM_GPUS_PER_NODE))
exec numactl --cpunodebind="$socket" --membind="$socket" "$@"'
  else
    task+='
exec "$@"'
  fi
  # env inside the container: an image's own environment would win over the host's.
  trace=$run/$attempt_folder/stacks/nccl_trace_rank_ # two names, as torch has called it
  srun "${options[@]}" env TORCH_FR_DUMP_TEMP_FILE="$trace" TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$trace" \
    COLOSSEUM_SCRATCH="$scratch" "${settings[@]}" MASTER_ADDR="${hosts[0]}" \
    MASTER_PORT=$((20000 + (SLURM_JOB_ID * 7 + attempt) % 10000)) COLOSSEUM_RUN="$run" COLOSSEUM_ATTEMPT="$attempt" \
    COLOSSEUM_STOP_AFTER_STEP=$((attempt ? 0 : stop_after_step)) \
    COLOSSEUM_GPUS_PER_NODE="$gpus_per_node" bash -c "$task" rank "${argv[@]}" &
  srun_pid=$!
  while :; do
    signalled=0
    wait "$srun_pid"
    code=$?
    ((signalled)) || break # else the wait was cut short by a trap
  done
}

# USR1 = save and leave: from Slurm before the time limit, from `jobs requeue`, from watch_limit. It is passed on with
# scancel; a signal to srun itself would make it kill its tasks. Ranks that do not leave are ended before Slurm ends us.
# shellcheck disable=SC2329  # called by a trap
stop_ranks() {
  signalled=1
  ((asked_to_stop)) && return
  asked_to_stop=1
  say "stop requested: the ranks save and exit"
  scancel --signal=USR1 "$job"
  # Of their step only: KILL to the job would cancel it, this script too. With vboost the ranks are the second step.
  (sleep $((margin_s > 60 ? margin_s - 30 : margin_s * 3 / 4)) && kill -0 $$ && say "the ranks did not exit in time" \
    && scancel --signal=KILL "$job.$((vboost ? 1 : 0))") &
}

# TERM = cancelled, preempted, requeued by someone, or out of time: Slurm has told the ranks too and decides what next.
# shellcheck disable=SC2329
on_term() {
  signalled=1 terminated=1
  say "terminated by Slurm: cancelled, preempted, requeued, or the time limit"
}

# A save may turn out slower than the margin Slurm was given: then we are earlier than Slurm.
watch_limit() {
  local end measured needed
  end=$(date -d "$(squeue -h -j "$job" -o %e)" +%s 2> /dev/null) || return # no limit
  while sleep 20 && kill -0 $$ 2> /dev/null; do # not longer than this script, if that is killed
    measured=$(record save-seconds)
    [[ $measured =~ ^[0-9]+$ ]] || continue
    needed=$((step_s + 2 * measured + 60))
    if ((needed > margin_s && $(date +%s) + needed >= end)); then
      kill -USR1 $$
      return
    fi
  done
}

# What a shakedown tests is also the resume. Our runtime leaves by itself after its step; another engine is asked to.
stop_foreign_engine_after() { # STEP
  until record has-step "$1"; do sleep 1 && kill -0 $$ 2> /dev/null || return; done
  kill -USR1 $$
}

# --- after the ranks ---

exclude_node() { # RANK: the node of a rank that crashed or hung, if the partition has another one
  local hosts node up excluded
  [[ $1 =~ ^[0-9]+$ ]] || return 0
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  node=${hosts[$(($1 / gpus_per_node))]:-}
  excluded=$(scontrol -o show job "$job" | sed -nE 's/.* ExcNodeList=([^ ]*).*/\1/p')
  [[ $excluded != "(null)" ]] || excluded=
  up=$(sinfo -h -p "$SLURM_JOB_PARTITION" -t idle,alloc,mix,comp -N -o %N | sort -u | wc -l)
  if ((up - $(scontrol show hostnames "$excluded" 2> /dev/null | wc -l) <= nodes)); then
    say "rank $1 failed on $node; it is not excluded: the partition has no node to spare"
  else
    say "rank $1 failed on $node: this job no longer uses it"
    scontrol update "JobId=$job" "ExcNodeList=${excluded:+$excluded,}$node" || true
  fi
}

go_on() { # RANK: whose node is at fault, if one is
  [[ $started_from != "$(record saved)" ]] || stop_if_looping $(($(record fruitless "$attempt") + 1)) "not requeued"
  if [[ $requeue != 1 ]]; then
    say "this cluster's jobs do not requeue; $requeue_by_hand"
    exit 75
  fi
  trap '' TERM # requeueing ends this script too; the job can be changed only once it is pending again
  if ! scontrol requeue "$job"; then
    say "Slurm did not requeue the job; $requeue_by_hand"
    exit 75
  fi
  exclude_node "$1"
  say "requeued"
  exit 0
}

killed_rank() { # the first one in srun's messages of this attempt: a killed rank writes no outcome.json itself
  local task
  task=$(tail -c "+$((log_begins + 1))" "logs/job-$SLURM_JOB_ID.out" \
    | sed -nE 's/^srun: error: [^ ]+: tasks? ([0-9]+).*: (.*)$/\1 \2/p' | head -n 1)
  [[ $task =~ ^[0-9]+\ (Killed|Aborted|Segmentation|Bus|Illegal|Floating|Out\ Of) ]] || return
  [[ $launch == srun ]] || task=$((${task%% *} * gpus_per_node)) # torchrun: the first rank of its node
  echo "${task%% *}"
}

settle() { # outcome.json decides, srun's exit code is a hint: it is the highest of any rank
  local kind=crash retry=true step=0 rank=- reason='outcome.json cannot be read' killed=
  ((asked_to_stop || terminated)) || killed=$(killed_rank) # else we or Slurm may have killed it
  if [[ ! -e $attempt_folder/outcome.json ]]; then # a rank that is killed writes none, nor does a foreign engine
    if ((code == 0 && !asked_to_stop)); then write_outcome completed false "exit code 0"
    elif ((code == 0)); then write_outcome saved true "stopped on request with exit code 0"
    else
      write_outcome crash true "${killed:+rank $killed was killed; }srun exited with code $code and no rank wrote outcome.json" "$killed"
    fi
  fi
  { read -r kind retry step rank && IFS= read -r reason; } < <(record outcome "$attempt")
  say "$kind at step $step, saved: $(record saved) (srun: $code): $reason"
  [[ $kind != completed ]] || exit 0
  if [[ $retry != true ]]; then
    say "not requeued: a restart would fail in the same way"
    exit 76
  fi
  ((!terminated)) || { say "not requeued by this script: Slurm ended it"; exit 75; }
  [[ $kind == saved ]] || : "${killed:=$rank}"
  go_on "$killed"
}

asked_to_stop=0 terminated=0 signalled=0 code=0
[[ -s bundle/manifest.json ]] || { say "$run has no bundle/: submit with sbatch --chdir=RUN bundle/job.sbatch"; exit 76; }
stop_if_complete
own_run
begin_attempt
stop_if_looping "$(record fruitless "$attempt")" "not started again"
trap stop_ranks USR1
trap on_term TERM
stop_without_image
stop_without_variables
[[ -n $container ]] || bare_metal
((!vboost)) || boost_clocks
watch_limit &
if ((stop_after_step && attempt == 0)) && [[ -e bundle/engine/command.json ]]; then
  stop_foreign_engine_after "$stop_after_step" &
fi
run_ranks
# Those that still run: bash knows; the number of one that has ended may be another process' now.
for helper in $(jobs -rp); do kill "$helper" 2> /dev/null; done
settle
