"""Ray: start one here or join a cluster, and see whether it can run the trials."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from pcr_ray.console import console
from pcr_ray.errors import InputError, NotNowError, PcrRayError
from pcr_ray.study.schema import GPU_SHARE, Resources
from pcr_ray.text import first_line

PROBE_SECONDS = 5


@contextlib.contextmanager
def connected(address: str | None, verbose: bool, modules: Sequence[Path] = ()) -> Iterator[None]:
    """A local Ray of our own, or a connection to a cluster; Ray's noise off unless asked for.

    `modules` are packages that the cluster's workers get from here.
    """
    import ray

    _quiet(verbose)
    if address:
        _reach(address)
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
        raise _refusal(error, address) from None
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
    return NotNowError(
        f"a local Ray did not start: {first_line(error)}\n  Nothing was run: run the same command again. If it stays "
        "so, the machine may be very busy or short of memory; --verbose shows Ray's own output."
    )


def _reach(address: str) -> None:
    """Ray tries for minutes where nobody answers, and for half a minute where the token is wrong: ask first."""
    from ray._private import services
    from ray._private.authentication import authentication_token_setup as token
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError

    place = address
    if address == "auto":
        try:
            place = services.canonicalize_bootstrap_address(address) or ""
        except ConnectionError:
            raise NotNowError(
                "--address auto: no Ray runs on this machine\n  Nothing was run. Start or join a cluster (ray start), "
                "or leave --address out to run on this machine."
            ) from None
        token.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    _probe(place)
    try:
        token.ensure_token_if_auth_enabled(create_token_if_missing=False)
        with _native_silence():
            head = GcsClient(address=place)
        services.get_node_to_connect_for_driver(head, timeout_seconds=PROBE_SECONDS)
    except AuthenticationError:
        raise InputError(
            f"the Ray cluster at {place} does not accept this command's token\n  Nothing was run. Set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH, a file) to what the head was started "
            "with; where neither is set, the token is that of ~/.ray/auth_token."
        ) from None
    except RuntimeError:
        raise NotNowError(
            f"this machine is not a node of the Ray cluster at {place}\n  Nothing was run. Run the command on one of "
            f"its nodes, or join first (ray start --address={place}); pcr-ray submit ray sends a sweep from anywhere."
        ) from None


def _probe(address: str) -> None:
    """Is there anybody, and does it speak Ray's protocol? gRPC answers HTTP/2's greeting with a SETTINGS frame."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--address {address}: expected auto or HOST:PORT, such as 10.0.0.1:6379")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS) as line:
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            if line.recv(9)[3:4] != b"\x04":
                raise ConnectionError("what answers there is not Ray")
    except OSError as error:
        raise NotNowError(
            f"nobody answers at --address {address} ({first_line(error)})\n  Nothing was run. Start the cluster "
            "(ray start --head --port=PORT), or leave --address out to run on this machine."
        ) from None


@contextlib.contextmanager
def _native_silence() -> Iterator[None]:
    """Ray's C++ writes to the file descriptor, past Python's loggers."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


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
