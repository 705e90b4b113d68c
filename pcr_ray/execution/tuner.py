"""Ray: start or join a cluster, check that it can run the trials, hand them to Tune."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.errors import InputError, NotNowError
from pcr_ray.study.schema import Resources
from pcr_ray.text import redact

GPU_SHARE = 0.25  # a Reduced ResNet18 trial leaves most of a GPU idle


@dataclass(frozen=True)
class Launch:
    """How an invocation runs its trials."""

    name: str
    trainable: str
    resources: Resources | None  # None: auto
    retries: int
    storage: str
    data_root: str
    address: str | None = None
    max_concurrent: int | None = None
    compile: bool = False
    verbose: bool = False


@contextlib.contextmanager
def cluster(address: str | None, verbose: bool) -> Iterator[None]:
    """A local Ray of our own, or a connection to a cluster; Ray's noise off unless asked for."""
    import ray

    if address and address.startswith("ray://"):
        raise InputError(
            f"--address {address}: Tune does not run through Ray Client; run the command on the cluster with "
            "--address auto (ray job submit does that)"
        )
    _quiet(verbose)
    try:
        ray.init(
            address=address,
            include_dashboard=False if address is None else None,
            log_to_driver=verbose,
            logging_level=logging.INFO if verbose else logging.ERROR,
            configure_logging=True,
        )
    except Exception as error:  # Ray raises many kinds, bare ones among them
        why = (redact(error).splitlines() or [type(error).__name__])[0]
        if address:
            raise InputError(f"the Ray cluster at {address} cannot be used: {why}") from None
        raise NotNowError(
            f"a local Ray did not start: {why}\n  Nothing was run: run the same command again. If it stays so, the "
            "machine may be very busy or short of memory; --verbose shows Ray's own output."
        ) from None
    try:
        yield
    finally:
        # Ray ends the process, exit code 1, if a thread touches it while it shuts down. Seen once, on a very busy
        # machine; a likely cause is the courier's thread, collecting handles of actors that Tune left in cycles.
        gc.collect()
        gc.disable()
        try:
            ray.shutdown()
        finally:
            gc.enable()


def _quiet(verbose: bool) -> None:
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # no CSV, JSON and TensorBoard files beside MLflow
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "auto")
    if not verbose:
        os.environ.setdefault("RAY_DEDUP_LOGS", "1")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
        warnings.filterwarnings("ignore", module=r"ray\.")
        for name in ("ray", "ray.tune", "ray.data", "ray.train"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # failures are told by the tracker


def settle_resources(wanted: Resources | None) -> Resources:
    """What a trial gets on this cluster; fails at once where the cluster can never provide it."""
    import ray

    nodes: list[dict[str, float]] = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    gpus = sum(n.get("GPU", 0) for n in nodes)
    if wanted is None:
        return Resources(cpu=1, gpu=GPU_SHARE if gpus else 0)
    if wanted.autoscaling:
        return wanted
    if wanted.gpu and not gpus:
        raise InputError(
            f"resources.gpu: {wanted.gpu:g} asked for, but the cluster has no GPU; use resources: auto or gpu: 0 "
            "(or autoscaling: true on a cluster that adds GPU nodes on demand)"
        )
    if not any(n.get("CPU", 0) >= wanted.cpu and n.get("GPU", 0) >= wanted.gpu for n in nodes):
        biggest = max(nodes, key=lambda n: (n.get("GPU", 0), n.get("CPU", 0)), default={})
        raise InputError(
            f"resources: cpu {wanted.cpu:g} and gpu {wanted.gpu:g} asked for on one node, but the largest has "
            f"cpu {biggest.get('CPU', 0):g} and gpu {biggest.get('GPU', 0):g}"
        )
    return wanted


def concurrency(resources: Resources, limit: int | None) -> int:
    """How many trials run at once."""
    import ray

    total = ray.cluster_resources()
    at_once = int(total.get("CPU", 1) / resources.cpu)
    if resources.gpu:
        at_once = min(at_once, int(total.get("GPU", 0) / resources.gpu))
    return max(1, min(at_once, limit or at_once))


def nodes_without(storage: str) -> list[str]:
    """Nodes that do not see the storage path: a trial that moves there starts over."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [n for n in ray.nodes() if n["Alive"]]
    if "://" in storage or len(nodes) == 1:
        return []
    with tempfile.NamedTemporaryFile(dir=storage, prefix=".seen-") as marker:
        look = ray.remote(num_cpus=0)(os.path.exists)
        asked = {
            n["NodeManagerAddress"]: look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(n["NodeID"], soft=False)
            ).remote(marker.name)
            for n in nodes
        }
        return [address for address, answer in asked.items() if not ray.get(answer)]


def run(launch: Launch, resources: Resources, trials: dict[str, TrialConfig], callback: Any) -> None:
    """Run the trials to their ends. Returns normally when interrupted: the callback knows what is done."""
    from ray import tune

    settings = {
        "data_root": launch.data_root,
        "storage": launch.storage,
        "cpus": resources.cpu,
        "compile": launch.compile,
    }
    bundle = {"CPU": resources.cpu} | ({"GPU": resources.gpu} if resources.gpu else {})
    with tempfile.TemporaryDirectory(prefix="pcr_ray-tune-") as scratch:
        tune.Tuner(
            tune.with_resources(load_trainable(launch.trainable), tune.PlacementGroupFactory([bundle])),
            # Plain validated values: Tune would evaluate some mappings of raw YAML as Python.
            param_space={
                "case": tune.grid_search(
                    [{"identity": i, "trial": t.model_dump(), "run": settings} for i, t in trials.items()]
                )
            },
            tune_config=tune.TuneConfig(
                reuse_actors=True,
                max_concurrent_trials=launch.max_concurrent,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=launch.name,
                storage_path=scratch,  # Tune's own state: ours is in MLflow, the spool and the checkpoints
                # None of Tune's: a worker on another node could not write into the scratch folder of this one.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=launch.retries),
                callbacks=[callback],
                verbose=2 if launch.verbose else 0,
            ),
        ).fit()


def load_trainable(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"trainable: '{name}' cannot be imported: {error}") from None
