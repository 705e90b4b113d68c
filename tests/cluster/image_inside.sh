# Run by image.sh inside the container, as its user: what KubeRay starts and asks, on ports that nobody else uses.
set -euo pipefail
ports() { python3 - "$1" <<'PY'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in held])
PY
}
read -r gcs dashboard agent worker_agent metrics worker_metrics <<< "$(ports 6)"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
scratch=$(mktemp -d /tmp/k.XXXX) # short: Ray's sockets live below it
ip=127.0.0.1
pids=()
stop() { for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done; wait 2> /dev/null || true; rm -rf "$scratch"; }
trap stop EXIT
wait_for() { for _ in $(seq 120); do if eval "$1"; then return; fi; sleep 1; done; echo "never: $1"; tail -20 "$scratch"/*.log; exit 1; }

# As in KubeRay's containers: bash gives its place to ray, so that ray gets the signal when the pod ends.
bash -c -- "ulimit -n 65536; ray start --head --block --num-cpus=0 --node-ip-address=$ip --port=$gcs \
  --dashboard-host=0.0.0.0 --dashboard-port=$dashboard --dashboard-agent-listen-port=$agent \
  --metrics-export-port=$metrics --temp-dir=$scratch/ray" > "$scratch/head.log" 2>&1 &
pids+=($!)
# The probes of the head pod.
wait_for "wget --tries 1 -T 2 -q -O- http://localhost:$agent/api/local_raylet_healthz | grep -q success"
wait_for "wget --tries 1 -T 10 -q -O- http://localhost:$dashboard/api/gcs_healthz | grep -q success"
echo "probes answer"

submit() { ray job submit --address "http://127.0.0.1:$dashboard" --submission-id sweep --no-wait -- "$@"; }
submit python -m pcr_ray.sweep "$HOME/sweeps/quickstart.yaml" --address auto --out "$scratch/runs" \
    --storage "$scratch/runs/quickstart/checkpoints" --data-root "$scratch/data" \
    --tracking-uri "sqlite:///$scratch/mlflow.db" --set 'grid={method: [pcr], batch_size: [20], seed: [0, 1]}' \
    --set 'resources={cpu: 1, gpu: 0}' > "$scratch/submit.log" 2>&1
sleep 20 # the driver waits: there is no worker yet
bash -c -- "ulimit -n 65536; ray start --block --num-cpus=1 --node-ip-address=$ip --address=$ip:$gcs \
  --dashboard-agent-listen-port=$worker_agent --metrics-export-port=$worker_metrics" > "$scratch/worker.log" 2>&1 &
pids+=($!)
ray job logs --address "http://127.0.0.1:$dashboard" --follow sweep
ray job status --address "http://127.0.0.1:$dashboard" sweep | grep -i succeeded

# With no token nobody gets in.
if RAY_AUTH_TOKEN=wrong ray job list --address "http://127.0.0.1:$dashboard" > /dev/null 2>&1; then
    echo "a wrong token was taken"
    exit 1
fi
echo "a wrong token is refused"
kill -TERM "${pids[1]}"
wait_for "! kill -0 ${pids[1]} 2> /dev/null"
echo "the worker ends on SIGTERM"
