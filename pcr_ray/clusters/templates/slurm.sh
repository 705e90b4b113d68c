#!/bin/bash
# A sweep of pcr_ray under Slurm, on a Ray cluster of this job's own. Read it, change it:
#
#   pcr-ray submit slurm FILE ... --print               prints this file, filled in
#   pcr-ray submit slurm FILE ... --template MY.sh      takes your copy of it instead
#
# `submit` replaces these words where they stand between two @ signs. All are quoted for the shell, except `log` (quoted
# for Slurm) and those marked "lines":
#   name log             the job's name; the file its output goes to
#   nodes cpus gpus      how many nodes; CPUs and GPUs of each
#   signal_seconds       how long before the time limit the sweep is told to stop
#   options              lines: further #SBATCH options (time, GPUs, partition, account, ...)
#   setup                lines: those of --setup; they run on every node, in turn
#   folder home          where submit was typed; the sweep's own folder. Shared by all nodes
#   progress             files whose times change when the sweep, or its search for settings, finishes a task
#   python arguments     the Python of the sweep, on every node; the sweep file and its options
#
#SBATCH --job-name=@name@
#SBATCH --output=@log@
#SBATCH --open-mode=append
#SBATCH --nodes=@nodes@
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=@cpus@
#SBATCH --signal=B:USR1@@signal_seconds@
#SBATCH --requeue
@options@

export PCR_PYTHON=@python@ PCR_CPUS=@cpus@ PCR_GPUS=@gpus@ PCR_ADDRESS=
folder=@folder@
home=@home@
nodes=@nodes@
start_seconds=300  # how long the nodes have to join
idle_limit=3       # so many runs in a row without a finished task, and the job stops requeueing itself
ray_log=$home/slurm-$SLURM_JOB_ID.ray.log
idle_file=$home/.slurm-$SLURM_JOB_ID.idle

setup() {
:
@setup@
}

scratch() {  # this node's folder; short, for Ray puts sockets there, whose paths have 107 characters at most
    local sum
    sum=$(cksum <<<"$SLURMD_NODENAME")  # the names of some nodes are too long themselves
    echo "/tmp/pcr-ray-$SLURM_JOB_ID-${sum%% *}"
}

# On each node, started by srun: Ray until TERM comes, and then nothing of it is left. All ports are the system's
# choice (0), and the folder is this job's own, so that jobs do not meet on a node.
node() {
    setup
    local folder role ip ray port i
    folder=$(scratch)
    rm -rf "$folder"
    mkdir -m 700 "$folder" || exit 1  # not one that somebody else has put there
    ip=$(hostname -I) && ip=${ip%% *}  # the first: say another here where nodes have several networks
    if [[ $PCR_ADDRESS ]]; then
        role=(--address="$PCR_ADDRESS")
    else
        role=(--head --port=0 --include-dashboard=false --disable-usage-stats)
        # Ray's client server cannot be switched off where gRPC is installed, and has no port 0.
        port=$("$PCR_PYTHON" -c 'import grpc, socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])' \
            2>/dev/null) && role+=(--ray-client-server-port="$port")
    fi
    trap 'kill -TERM "$ray"' TERM
    "$PCR_PYTHON" -m ray.scripts.scripts start "${role[@]}" --block --temp-dir="$folder" \
        --node-ip-address="$ip" --node-name="$SLURMD_NODENAME" --num-cpus="$PCR_CPUS" --num-gpus="$PCR_GPUS" \
        --node-manager-port=0 --object-manager-port=0 --min-worker-port=0 --max-worker-port=0 \
        --dashboard-agent-listen-port=0 --dashboard-agent-grpc-port=0 --runtime-env-agent-port=0 \
        --metrics-export-port=0 &
    ray=$!
    wait "$ray"  # until Ray ends, or until TERM comes
    for ((i = 0; i < 40; i++)); do
        kill -0 "$ray" 2>/dev/null || break
        sleep 0.5
    done
    kill -KILL "$ray" 2>/dev/null
    rm -rf "$folder"
}
export -f setup scratch node

srun_node() {  # NODE
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" --cpus-per-task="$PCR_CPUS" --export=ALL --input=none \
        --output="$ray_log" --open-mode=append bash -c node 2>>"$ray_log" &
    sruns+=("$!")
}

say() { echo "pcr-ray: job $SLURM_JOB_ID: $*"; }

start_ray() {  # the head here, then the others; fails if one of them is not there in time
    local here name i
    here=$(scratch)
    rm -rf "$here"
    srun_node "$SLURMD_NODENAME"
    for ((i = 0; i < start_seconds * 2; i++)); do
        [[ -O $here && -s $here/ray_current_cluster || $cancelled$ended ]] && break
        kill -0 "${sruns[0]}" 2>/dev/null || break
        sleep 0.5
    done
    PCR_ADDRESS=$(cat "$here/ray_current_cluster" 2>/dev/null)
    [[ $PCR_ADDRESS ]] || { say "Ray did not start on $SLURMD_NODENAME"; return 1; }
    for name in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        [[ $name == "$SLURMD_NODENAME" ]] || srun_node "$name"
    done
    # Ray has no time limit of its own for a head that does not answer.
    ((nodes == 1)) || timeout $((start_seconds + 60)) "$PCR_PYTHON" -c '
import sys, time
import ray

address, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
ray.init(address, logging_level="ERROR", log_to_driver=False)
deadline = time.monotonic() + seconds
while len(alive := sorted(n["NodeName"] for n in ray.nodes() if n["Alive"])) < count:
    if time.monotonic() > deadline:
        sys.exit(f"pcr-ray: after {seconds:g} s only {len(alive)} of {count} nodes are there: {alive}")
    time.sleep(1)
' "$PCR_ADDRESS" "$nodes" "$start_seconds"
}

stop_nodes() {  # every step gets TERM, this script does not
    ((${#sruns[@]})) || return
    scancel --signal=TERM "$SLURM_JOB_ID"
    wait "${sruns[@]}"
}

progress() { stat --format='%n %y' @progress@ 2>/dev/null; }  # changes with every task that a trial finishes

requeue() {  # the sweep is not done: the same job again, unless it gets nowhere
    local idle=0 why="The reason is in the log above: submit again when it is gone"
    [[ $stopping ]] && why="A task needs more time than one run has: raise --time and submit again"
    [[ $(progress) == "$before" ]] && idle=$(($(cat "$idle_file" 2>/dev/null || echo 0) + 1))
    echo "$idle" >"$idle_file"
    if ((idle >= idle_limit)); then
        rm -f "$idle_file"
        say "no task was finished in $idle runs: not queued again. $why"
        exit 75
    fi
    trap - TERM USR1 USR2
    say "the sweep is not done: queued again"
    scontrol requeue "$SLURM_JOB_ID" && sleep 600  # Slurm ends this script meanwhile
    say "Slurm did not queue the job again: submit it again to continue"
    exit 75
}

stop_driver() {  # SIGNAL, and after so many SECONDS the end: what is lost then is one task per trial
    interrupted=1
    [[ $driver && ! $watchdog ]] || return
    kill -"$1" "$driver"
    (
        sleep "$2" & pause=$!
        trap 'kill "$pause"; exit' TERM
        wait "$pause"
        kill -KILL "$driver"
    ) &
    watchdog=$!
}

time_is_up() {
    say "the time limit is near: the sweep is told to stop"
    stopping=1
    stop_driver USR1 $((@signal_seconds@ * 3 / 4))
}

cancel() {  # by `pcr-ray job cancel`, with everything else still there
    cancelled=1
    stop_driver TERM 60
}

end() {  # by Slurm, which ends the nodes at the same time: scancel, a preemption, a requeue by somebody else
    ended=1
    stop_driver TERM 60
}

sruns=() driver='' watchdog='' stopping='' cancelled='' ended='' interrupted=''
trap time_is_up USR1
trap cancel USR2
trap end TERM

cd "$folder" || { say "the folder $folder is not on $SLURMD_NODENAME: it must be shared by all nodes"; exit 2; }
mkdir -p "$home"
setup
unset RAY_ADDRESS RAY_AUTH_TOKEN_PATH
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')  # in the environment alone: command lines are public
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 RAY_USAGE_STATS_ENABLED=0

say "on $SLURM_JOB_NODELIST, run $((${SLURM_RESTART_COUNT:-0} + 1))"
: >"$ray_log"
before=$(progress)
if start_ray; then
    set -m  # else the shell starts it deaf to INT, by which a sweep stops itself
    "$PCR_PYTHON" -m pcr_ray.sweep @arguments@ --address "$PCR_ADDRESS" &
    driver=$!
    set +m
    [[ $stopping$cancelled$ended ]] && stop_driver TERM 60  # told so before there was a driver
    while :; do  # a trap ends `wait` early
        interrupted=
        wait "$driver"
        code=$?
        [[ $interrupted ]] || break
    done
    driver=
    [[ $watchdog ]] && kill "$watchdog" 2>/dev/null
elif [[ ! $cancelled$ended ]]; then
    say "nothing was run: submit again to try again. The end of $ray_log:"
    tail -n 20 "$ray_log"
    stop_nodes
    exit 75
fi
if [[ $ended ]]; then  # Slurm stops the nodes and decides what becomes of the job: scancel would undo a requeue
    say "ended by Slurm: submit again to continue, unless Slurm queues it again itself"
    exit 75
fi
stop_nodes
if [[ $cancelled ]]; then
    say "cancelled: submit again to continue"
    trap - TERM
    scancel "$SLURM_JOB_ID" && sleep 600  # so that Slurm says so too
fi
[[ $stopping && $code -gt 128 ]] && code=75  # by the signal itself, before the sweep was ready for it
((code == 75)) && requeue
rm -f "$idle_file"
((code == 0)) && rm -f "$ray_log"
say "the sweep ended with exit code $code"
exit "$code"
