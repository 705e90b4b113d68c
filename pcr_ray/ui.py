"""The MLflow UI for the store that sweeps write to, opened where the runs are: pcr-ray ui [NAME]"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pcr_ray import plugins
from pcr_ray.console import Parser, console, run
from pcr_ray.errors import InputError, NotNowError
from pcr_ray.study import cells
from pcr_ray.study.load import Study
from pcr_ray.text import redact
from pcr_ray.tracking import views
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun

PATIENCE = 120.0  # seconds for the server to answer; 8 s on an idle machine
SHOWN = 10  # sweeps that are listed without a NAME


def main(argv: Sequence[str]) -> int:
    p = Parser(prog="pcr-ray ui", description="Start the MLflow UI on 127.0.0.1 and print its links.")
    p.add_argument("sweep", nargs="?", metavar="NAME|FILE", help="a sweep to open (default: list those of the store)")
    p.add_argument("--tracking-uri", metavar="URI", help="MLflow (default: MLFLOW_TRACKING_URI, else mlflow.db here)")
    p.add_argument("--port", type=int, default=5000, help="port (default: 5000)")
    plugins.add_argument(p)
    options = p.parse_args(argv)
    if not 1 <= options.port <= 65535:
        raise InputError(f"--port {options.port}: needs a number from 1 to 65535")
    plugins.load(options.plugins)
    from pcr_ray import api

    console.print("opening the record …")
    store = api.existing_store(options.tracking_uri)
    with store.guarded():
        pages = sweep_pages(store, api.look_up(options.sweep, store)) if options.sweep else store_pages(store)
    if store.uri.startswith(("http://", "https://")):
        console.print("the store is a server and has its UI already:")
        _print(pages, _server(store.uri))
        return 0
    return _serve(store, options.port, pages)


def store_pages(store: Store) -> dict[str, str]:
    """All runs, and the newest sweeps of the store as charts."""
    names = [sweep.name for sweep in store.sweeps()]
    pages = {"all runs": views.runs_page(store.experiment)}
    return pages | {f"sweep {name}": views.charts_page(store.experiment, name) for name in names[:SHOWN]}


def sweep_pages(store: Store, study: Study) -> dict[str, str]:
    """The pages of one sweep. What earlier versions left out of the record for them is added."""
    parent = store.sweep_run(study.name)
    known = store.trials(study.trials.keys())
    if parent is None or not known:
        raise InputError(f"no trial of '{study.name}' was run yet: there is nothing to show in {store}")
    SweepRun(store, study).claim(known.values())
    views.save(store, study)
    # The compare page shows single runs: one per cell, that of its first seed.
    firsts: dict[object, str] = {}
    for identity, trial in sorted(study.trials.items(), key=lambda item: item[1].seed):
        if identity in known and known[identity].finished:
            firsts.setdefault(tuple(cells.value_of(trial, f) for f in cells.fields(study)), known[identity].run_id)
    pages = {
        "trials as charts": views.charts_page(store.experiment, study.name),
        "trials as a table": views.table_page(store.experiment, study.name),
        "the answer": views.run_page(store.experiment, parent),
        "the report": views.report_page(store.experiment, parent),
    }
    if len(firsts) > 1:
        pages["first seeds compared"] = views.compare_page(store.experiment, list(firsts.values()))
    return pages | {"all runs": views.runs_page(store.experiment)}


def _print(pages: dict[str, str], server: str) -> None:
    for name, page in pages.items():
        console.print(f"  {name + ':':22}{server}/{page}", markup=False, soft_wrap=True)


def _server(uri: str) -> str:
    """Without credentials: the browser asks for its own."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _serve(store: Store, port: int, pages: dict[str, str]) -> int:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(f"port {port} is in use: choose another with --port")
    # The store's URI goes through the environment: a password in it stays out of the process list.
    environment = os.environ | {"MLFLOW_BACKEND_STORE_URI": store.uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1", "--port", str(port)]
    # In a folder of its own, so that it makes none here; in a session of its own, so that Ctrl-C reaches us alone.
    with tempfile.TemporaryDirectory(prefix="pcr_ray-ui-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            console.print(f"starting the MLflow UI of {store} …", markup=False, soft_wrap=True)
            address = f"http://127.0.0.1:{port}"
            _wait(server, address, log)
            console.print("open one of these; Ctrl-C stops the server")
            _print(pages, address)
            server.wait()
            raise NotNowError(f"the MLflow server ended: {_last_line(log)}")
        except KeyboardInterrupt:
            console.print("\nstopped")
            return 0
        finally:
            signal.signal(signal.SIGTERM, before)
            _end(server)


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy's 127.0.0.1 is another machine
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise NotNowError(f"the MLflow server did not start: {_last_line(log)}")
        try:
            with direct.open(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise NotNowError(f"the MLflow server did not answer within {PATIENCE:g} s: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return redact(lines[-1]) if lines else "it said nothing"


def _end(server: subprocess.Popen[bytes]) -> None:
    """The server and the worker that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:
            return
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(run(main))
