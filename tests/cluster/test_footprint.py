"""A whole round of sweep, status, report and UI writes into its output folders and nowhere else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from tests.servers import free_port
from tests.sweeping import environment, sweep_file, wait_for


def created(folder: Path, depth: int) -> set[str]:
    """Files and empty folders, by the first parts of their paths."""
    found = [p for p in folder.rglob("*") if not p.is_dir() or not any(p.iterdir())]
    return {"/".join(p.relative_to(folder).parts[:depth]) for p in found}


# What Ray, torch and Matplotlib keep for themselves: a token, a cache of fonts, and the last session's logs, which the
# next start clears.
THEIRS = {".ray/auth_token", ".cache/matplotlib", ".config/matplotlib"}


@pytest.mark.cluster
def test_a_sweep_and_its_reports_write_nothing_outside_their_folders(tmp_path: Path, root: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir(), home.mkdir()
    temporary = Path(tempfile.mkdtemp(prefix="f", dir="/tmp"))  # short: Ray's sockets are below it
    places = {"HOME": str(home), "TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)}
    settings = environment(here, **places, PYTHONDONTWRITEBYTECODE="1")
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        settings.pop(name, None)
    sweep_file(here, grid={"method": ["pcr"], "seed": [0]})
    port = free_port()
    try:
        for words in (["sweep", "tiny.yaml", "--data-root", str(root)], ["status", "tiny"], ["report", "tiny"]):
            done = subprocess.run(
                [sys.executable, "-m", "pcr_ray", *words], cwd=here, env=settings, capture_output=True, text=True,
                timeout=400, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
        ui = subprocess.Popen(
            [sys.executable, "-m", "pcr_ray", "ui", "tiny", "--port", str(port)], cwd=here, env=settings
        )
        try:
            wait_for(lambda: _answers(port), "the UI", 180, ui)
        finally:
            ui.terminate()
            ui.wait(60)
        time.sleep(1)
        assert created(here, 1) == {"tiny.yaml", "mlflow.db", "mlartifacts", "runs"}
        assert created(home, 2) <= THEIRS
        sessions = {place for place in created(temporary, 2) if not place.startswith("torchinductor_")}
        assert len(sessions) == 1 and sessions.pop().startswith("ray/session_2")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).status == 200
    except OSError:
        return False
