"""The MLflow UI for the store that sweeps write to: pcr-ray ui"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from pcr_ray.console import console, run
from pcr_ray.errors import InputError
from pcr_ray.text import redact
from pcr_ray.tracking.store import Store, tracking_uri


def main(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(prog="pcr-ray ui", description="Start the MLflow UI on 127.0.0.1.")
    p.add_argument("--tracking-uri", metavar="URI", help="MLflow (default: MLFLOW_TRACKING_URI, else mlflow.db here)")
    p.add_argument("--port", type=int, default=5000, help="port (default: 5000)")
    options = p.parse_args(argv)
    if not 1 <= options.port <= 65535:
        raise InputError(f"--port {options.port}: needs a number from 1 to 65535")
    uri = tracking_uri(options.tracking_uri)
    if uri.startswith(("http://", "https://")):
        console.print(f"the store is a server and has its UI at {redact(uri)}", markup=False)
        return 0
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", options.port)) == 0:
            raise InputError(f"port {options.port} is in use: choose another with --port")
    Store(uri).open()
    console.print(f"MLflow UI of {redact(uri)} at http://127.0.0.1:{options.port}; stop it with Ctrl-C", soft_wrap=True)
    # The store's URI goes through the environment: a password in it stays out of the process list.
    environment = os.environ | {"MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    return subprocess.run([*command, "--port", str(options.port)], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(main))
