"""The notebook of the docs, run from its first cell to its last by a kernel as Jupyter starts it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.sweeping import REPOSITORY, environment

pytestmark = pytest.mark.slow


def test_the_tour_goes_from_a_study_to_figures(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run inside an event loop, off a terminal, and twice in one process."""
    shutil.copytree(REPOSITORY / "sweeps", tmp_path / "sweeps")
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs")
    notebook = nbformat.read(tmp_path / "docs/tour.ipynb", as_version=4)
    assert len(notebook.cells) == 10 and not any(c.get("outputs") for c in notebook.cells)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/pcr-ray"  # of this checkout, wherever another is installed
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pcr_ray "$@"\n')
    command.chmod(0o755)
    for name, value in environment(tmp_path, PCR_RAY_DATA=str(root)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path / "docs")}})
    client.execute()
    shown = [c.outputs for c in notebook.cells if c.cell_type == "code"]
    kinds = [{kind for output in outputs for kind in output.get("data", {})} for outputs in shown]
    texts = [" ".join(_text(output) for output in outputs) for outputs in shown]
    assert "6 trials over method, seed" in texts[0]
    assert "FINISHED" in texts[1] and "6 to run" in texts[1]
    assert "text/html" in kinds[2]  # a table
    assert "image/png" in kinds[3] and "image/png" in kinds[4]
    assert "6 done, 2 to run" in texts[4]
    assert [o["text"] for out in shown for o in out if o.get("name") == "stderr"] == []


def _text(output: Any) -> str:
    """As a reader sees it; rich speaks HTML there."""
    data = output.get("data", {})
    return re.sub("<[^>]*>", "", data.get("text/html", "")) + data.get("text/plain", "") + output.get("text", "")
