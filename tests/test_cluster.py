"""Joining a cluster and asking it for resources: what a person is told when it cannot work."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import ray
from ray._private import utils

from pcr_ray.errors import InputError, NotNowError
from pcr_ray.execution import cluster, join
from pcr_ray.execution.options import RunOptions
from pcr_ray.study.schema import GPU_SHARE, Resources


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_ray_that_does_not_start_is_one_message_and_nobodys_failed_trial(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own failure is made: it cannot be brought about at will."""

    def fails(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nmore")

    monkeypatch.setattr(ray, "init", fails)
    monkeypatch.setattr(join, "reach", lambda address: None)  # auto finds whatever runs on the machine
    with pytest.raises(NotNowError, match="timed out during startup") as caught, cluster.connected(address, False):
        pass
    assert caught.value.exit_code == 75 and "more\n" not in str(caught.value)


def test_a_temporary_folder_with_too_long_a_name_is_the_users_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        utils.validate_socket_filepath(f"/tmp/{'x' * 100}/sockets/plasma_store")

    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(InputError, match="Set RAY_TMPDIR to a short one"), cluster.connected(None, False):
        pass


def test_an_address_where_nobody_is_answers_at_once() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(NotNowError, match=f"nobody answers at --address {address}"), cluster.connected(address, False):
        pass
    assert time.monotonic() - started < 10 and not ray.is_initialized()


def test_an_address_where_somebody_else_is_answers_at_once() -> None:
    """A server that says nothing, and one of HTTP/1."""
    with socket.socket() as silent, HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        threading.Thread(target=other.serve_forever, daemon=True).start()
        for port, text in ((silent.getsockname()[1], "timed out"), (other.server_port, "not Ray")):
            started = time.monotonic()
            with pytest.raises(NotNowError, match=text), cluster.connected(f"127.0.0.1:{port}", False):
                pass
            assert time.monotonic() - started < 10
        other.shutdown()


@pytest.mark.parametrize(
    "address", ["nonsense", "host:", "host:port", ":99", "host:99999", "host:²", "a..b:6379", f"{'a' * 64}.b:6379"]
)
def test_an_address_that_is_none_is_bad_input_before_anything_is_made(address: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        RunOptions(address=address)


def test_ray_client_is_refused_with_the_way_that_works() -> None:
    with pytest.raises(InputError, match="pcr-ray submit ray"):
        RunOptions(address="ray://a:1")


TWO = [{"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}]


def test_auto_means_a_share_of_a_gpu_where_there_is_one() -> None:
    assert cluster.fit(Resources(), [{"CPU": 2.0}]) == Resources(cpu=1, gpu=0)
    assert cluster.fit(Resources(cpu=2), TWO) == Resources(cpu=2, gpu=GPU_SHARE)


def test_what_no_node_has_is_refused_with_the_largest_node() -> None:
    assert cluster.fit(Resources(cpu=8, gpu=2), TWO) == Resources(cpu=8, gpu=2)
    with pytest.raises(InputError, match=r"cpu 9 and gpu 1 .* the largest has cpu 8 and gpu 2"):
        cluster.fit(Resources(cpu=9, gpu=1), TWO)
    with pytest.raises(InputError, match="there is no GPU"):
        cluster.fit(Resources(gpu=1), TWO[:1])


def test_options_print_themselves_as_a_command_line() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    RunOptions.add_arguments(parser)
    options = RunOptions(
        address="auto", storage="/a b", max_concurrent=3, rerun="changed", compile=True, flush_seconds=2.5
    )
    assert RunOptions.parse(parser.parse_args(options.arguments())) == options
    assert RunOptions().arguments() == []
    with pytest.raises(InputError, match="--max-concurrent 0: needs a number from 1 to"):
        RunOptions(max_concurrent=0)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_sigterm_is_a_stop_signal_also_when_ray_shuts_down(when: str) -> None:
    """A real Ray in a process of its own: what a handler around it gets, from the start of Ray to its end."""
    code = f"""
import os
from signal import SIGTERM
import ray
from ray._private import worker
from pcr_ray.execution import cluster, signals

def told_first(function):
    def told(*args, **more):
        os.kill(os.getpid(), SIGTERM)
        return function(*args, **more)
    return told

shutdown = ray.shutdown
with signals.caught():
    try:
        with cluster.connected(None, False), signals.caught():
            if "{when}" == "before":
                ray.shutdown = told_first(shutdown)
            if "{when}" == "while":
                node = worker._global_node
                end = node.kill_all_processes
                node.kill_all_processes = told_first(end)
        if "{when}" == "after":
            os.kill(os.getpid(), SIGTERM)
    except KeyboardInterrupt:
        if "{when}" == "while":
            node.kill_all_processes = end
        shutdown()
        print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "stopped"), done.stderr


@pytest.mark.slow
def test_a_process_of_rays_that_dies_while_ray_starts_is_not_now() -> None:
    """Ray itself waits a minute for its GCS, and then ends the process with exit code 1."""
    code = """
import threading, time
import psutil
from pcr_ray.console import run
from pcr_ray.execution import cluster

def kill():
    while True:
        for child in psutil.Process().children():
            if child.name() == "gcs_server":
                child.kill()
                return
        time.sleep(0.01)

def main(argv):
    threading.Thread(target=kill, daemon=True).start()
    with cluster.connected(None, False):
        return 0

raise SystemExit(run(main, []))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 75, done.stderr
    assert "a local Ray did not start: " in done.stderr and "run the same command again" in done.stderr
