"""Ray: start one here or join a cluster, and see whether it can run the trials."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from pcr_ray.console import console
from pcr_ray.errors import InputError, NotNowError
from pcr_ray.study.schema import GPU_SHARE, Resources
from pcr_ray.text import first_line

PROBE_SECONDS = 5.0


@contextlib.contextmanager
def connected(address: str | None, verbose: bool, modules: Sequence[Path] = ()) -> Iterator[None]:
    """A local Ray of our own, or a connection to a cluster; Ray's noise off unless asked for.

    `modules` are packages that the cluster's workers get from here.
    """
    import ray

    _quiet(verbose)
    if address and address != "auto":
        _probe(address)
    try:
        ray.init(
            address=address or "local",  # else RAY_ADDRESS would decide
            include_dashboard=False if address is None else None,
            log_to_driver=verbose,
            logging_level=logging.INFO if verbose else logging.ERROR,
            configure_logging=True,
            runtime_env={"py_modules": [str(m) for m in modules]} if modules else None,
        )
    except Exception as error:  # Ray raises many kinds, bare ones among them
        why = first_line(error)
        if address:
            raise NotNowError(
                f"the Ray cluster at {address} cannot be used: {why}\n  Nothing was run. Is it up, and the address "
                "that of its head (ray start --head prints it)?"
            ) from None
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


def _probe(address: str) -> None:
    """Ray tries for minutes where nobody answers: ask first."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--address {address}: expected auto or HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise NotNowError(
            f"nobody answers at --address {address} ({first_line(error)})\n  Nothing was run. Start the cluster "
            "(ray start --head --port=PORT), or leave --address out to run on this machine."
        ) from None


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
            logging.getLogger(name).setLevel(logging.CRITICAL)  # failures are told by the callback


def settle(wanted: Resources, address: str | None) -> Resources:
    """What a trial gets here; what this machine can never provide is refused, and a cluster may yet grow."""
    import ray

    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    try:
        return fit(wanted, nodes)
    except InputError as error:
        if address is None:
            raise
        console.print(f"waiting for nodes that have what a trial needs: {error}", soft_wrap=True, markup=False)
        return wanted.model_copy(update={"gpu": wanted.gpu or 0})


def local_nodes(wanted: Resources) -> list[dict[str, float]]:
    """What Ray would find on this machine, without starting it."""
    gpus = 0
    if wanted.gpu:
        from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

        gpus = NvidiaGPUAcceleratorManager.get_current_node_num_accelerators()
    return [{"CPU": os.cpu_count() or 1, "GPU": gpus}]


def fit(wanted: Resources, nodes: list[dict[str, float]]) -> Resources:
    """`wanted` with `gpu` filled in, held against what nodes have."""
    gpus = sum(n.get("GPU", 0) for n in nodes)
    settled = wanted.model_copy(update={"gpu": GPU_SHARE if gpus else 0}) if wanted.gpu is None else wanted
    if settled.gpu and not gpus:
        raise InputError(
            f"resources.gpu: {settled.gpu:g} asked for, but there is no GPU; use resources: auto or gpu: 0"
        )
    if not any(n.get("CPU", 0) >= settled.cpu and n.get("GPU", 0) >= (settled.gpu or 0) for n in nodes):
        biggest = max(nodes, key=lambda n: (n.get("GPU", 0), n.get("CPU", 0)), default={})
        raise InputError(
            f"resources: cpu {settled.cpu:g} and gpu {settled.gpu:g} asked for on one node, but the largest has "
            f"cpu {biggest.get('CPU', 0):g} and gpu {biggest.get('GPU', 0):g}"
        )
    return settled


def concurrency(resources: Resources, limit: int | None) -> int:
    """How many trials run at once."""
    import ray

    total = ray.cluster_resources()
    at_once = int(total.get("CPU", 1) / resources.cpu)
    if resources.gpu:
        at_once = min(at_once, int(total.get("GPU", 0) / resources.gpu))
    return max(1, min(at_once, limit or at_once))
