"""Ray: start one here or join a cluster, and see whether it can run the trials."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pcr_ray.console import console, stderr
from pcr_ray.errors import InputError, NotNowError, PcrRayError
from pcr_ray.execution import join, leftovers, watch
from pcr_ray.study.schema import GPU_SHARE, Resources
from pcr_ray.text import first_line


@contextlib.contextmanager
def connected(address: str | None, verbose: bool, modules: Sequence[Path] = ()) -> Iterator[None]:
    """A local Ray of our own, or a connection to a cluster; Ray's noise off unless asked for.

    `modules` are packages that the cluster's workers get from here.
    """
    from ray._common.utils import get_default_ray_temp_dir

    quiet(verbose)
    if address:
        join.reach(address)
    with contextlib.nullcontext() if address else leftovers.announced(Path(get_default_ray_temp_dir())):
        _init(address, verbose, modules)
        try:
            with contextlib.nullcontext() if verbose else _news(address), _tidy(local=address is None):
                yield
        finally:
            # Ray ends the process, exit code 1, if a thread touches it while it shuts down. Seen once, on a very busy
            # machine; a likely cause is the courier's thread, collecting handles of actors that Tune left in cycles.
            gc.collect()
            gc.disable()
            try:
                _shutdown()
            finally:
                gc.enable()


def _init(address: str | None, verbose: bool, modules: Sequence[Path]) -> None:
    """Leaves the handler of SIGTERM as it was: Ray's own would end the process, also while Ray shuts down."""
    import ray

    on_term = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.nullcontext() if address else watch.starting(_broken):
            ray.init(
                address=address or "local",  # else RAY_ADDRESS would decide
                include_dashboard=False if address is None else None,
                log_to_driver=verbose,
                logging_level=logging.INFO if verbose else logging.ERROR,
                configure_logging=True,
                runtime_env={"py_modules": [str(m) for m in modules]} if modules else None,
            )
    except SystemExit:  # Ray's handler of SIGTERM, before ours is in its place again
        raise KeyboardInterrupt from None
    except Exception as error:  # Ray raises many kinds, bare ones among them
        raise _refusal(error, address) from None
    finally:
        if on_term and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_term)


def _broken() -> None:
    """Ray's own wait cannot be interrupted. Nothing of ours has begun yet."""
    error = _refusal(RuntimeError("a process of Ray has died"), None)
    stderr.print(f"error: {error}", markup=False, soft_wrap=True)
    os._exit(error.exit_code)


def _shutdown() -> None:
    """Ray sets SIGTERM back to ending the process, behind Python's back: our handler is put in its place again."""
    import ray
    from ray._private import worker

    node: Any = worker._global_node
    if node is not None:
        end = node.kill_all_processes  # what takes longest, after that

        def heard(*args: Any, **more: Any) -> Any:
            _hear_again()
            return end(*args, **more)

        node.kill_all_processes = heard
    ray.shutdown()
    _hear_again()


def _hear_again() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)


@contextlib.contextmanager
def _tidy(*, local: bool) -> Iterator[None]:
    """Clears what killed sweeps left here, and marks a Ray of our own as in use: its folder goes at the next start."""
    from ray._private import worker

    node: Any = worker._global_node
    session = Path(node.get_session_dir_path()) if local else None
    with leftovers.marked(session) if session else contextlib.nullcontext():
        leftovers.clear(session.parent if session else None)
        yield


def _refusal(error: Exception, address: str | None) -> PcrRayError:
    if "Version mismatch" in str(error):
        return InputError(
            f"the Ray cluster at {address} and this command have different versions: {' '.join(str(error).split())}\n"
            "  Nothing was run. Use the Python and Ray that the cluster was started with."
        )
    if address:
        return NotNowError(
            f"the Ray cluster at {address} cannot be used: {first_line(error)}\n  Nothing was run. Is it up, and the "
            "address that of its head (ray start --head prints it)?"
        )
    if "AF_UNIX path" in str(error):
        return InputError(
            f"a local Ray cannot start: the name of the temporary folder is too long for its sockets "
            f"({first_line(error)})\n  Nothing was run. Set RAY_TMPDIR to a short one, such as /tmp."
        )
    return NotNowError(
        f"a local Ray did not start: {first_line(error)}\n  Nothing was run: run the same command again. If it stays "
        "so, the machine may be very busy or short of memory; --verbose shows Ray's own output."
    )


def quiet(verbose: bool) -> None:
    """Before Ray is imported: in a notebook that alone makes it, and tqdm, ask for widgets."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # no CSV, JSON and TensorBoard files beside MLflow
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "auto")
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "inf")  # nobody reads Tune's state: 2 ms per trial each time
    if not verbose:
        os.environ.setdefault("RAY_DEDUP_LOGS", "1")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
        warnings.filterwarnings("ignore", module=r"ray\.")
        warnings.filterwarnings("ignore", message="IProgress not found")
        for name in ("ray", "ray.tune", "ray.data", "ray.train", "ray.widgets"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # failures are told by the callback


@contextlib.contextmanager
def _news(address: str | None) -> Iterator[None]:
    """Of a lost node Ray prints some 40 lines of its logs, whatever it was told about printing; this is one line."""
    from ray._private import worker

    def tell(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        found = [] if address is None else re.findall(r"address: (\S+) .*has been marked dead", " ".join(data["lines"]))
        for lost in found:
            console.print(f"node {lost} is lost: its trials continue on others, from their last finished task")

    printed, worker.print_to_stdstream = worker.print_to_stdstream, tell
    try:
        yield
    finally:
        worker.print_to_stdstream = printed


def settle(wanted: Resources, address: str | None, minutes: float | None = None) -> Resources:
    """What a trial gets here. What this machine can never provide is refused; a cluster may yet grow."""
    import ray

    try:
        return fit(wanted, _nodes())
    except InputError as error:
        if address is None:
            raise
        console.print(f"waiting for nodes that have what a trial needs: {error}", soft_wrap=True, markup=False)
    # Tells an autoscaler what is needed.
    demand = ray.util.placement_group([{"CPU": wanted.cpu} | ({"GPU": wanted.gpu} if wanted.gpu else {})])
    deadline = time.monotonic() + 60 * (minutes or float("inf"))
    try:
        while True:
            time.sleep(1)
            try:
                return fit(wanted, _nodes())
            except InputError as error:
                if time.monotonic() > deadline:
                    raise NotNowError(
                        f"no node that can run a trial came within --wait {minutes:g} minutes: {error}\n"
                        "  Nothing was run."
                    ) from None
    finally:
        ray.util.remove_placement_group(demand)


def _nodes() -> list[dict[str, float]]:
    import ray

    return [n["Resources"] for n in ray.nodes() if n["Alive"]]


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
