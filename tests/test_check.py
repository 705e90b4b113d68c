"""`pcr-ray check`: a line per part, and an exit code that a health check can use."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from pcr_ray import check
from pcr_ray.cli import main


def test_a_good_installation_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    assert main(["check", "--data-root", str(tmp_path / "data")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["ok"] * 7
    assert all(version(p) in line for p, line in zip(check.PACKAGES, shown))
    assert list((tmp_path / "data").iterdir()) == [] and not store.exists()  # it leaves nothing behind


def test_every_fault_is_a_line_and_the_exit_code_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hunter2@127.0.0.1:9")
    monkeypatch.setattr(check, "PACKAGES", ("torch", "no_such_package"))
    assert main(["check", "--data-root", str(tmp_path / "file")]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["ok", "failed", "ok", "failed", "failed"]
    assert "no_such_package" in shown[1] and "data root" in shown[3] and "tracking store" in shown[4]
    assert "hunter2" not in "".join(shown)
