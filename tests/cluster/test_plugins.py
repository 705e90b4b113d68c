"""A method of one's own on nodes that have never seen its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.hosts import Lan
from tests.sweeping import children, sweep_file
from tests.test_plugins import METHOD

pytestmark = pytest.mark.cluster


def test_a_plugin_of_one_host_reaches_the_workers_of_all(lan: Lan, folder: Path) -> None:
    lan.three_nodes()
    code = f"""
import pathlib
folder = pathlib.Path("/tmp/mine")  # a host's own /tmp
folder.mkdir()
(folder / "_scale.py").write_text("SCALE = 1.0")
(folder / "my_method.py").write_text({METHOD.format(name="mine")!r})
"""
    lan.python(code)
    (lan.shared / "slow").touch()
    grid = {"method": ["mine"], "seed": {"range": [0, 6]}}
    sweep_file(folder, trainable="tests.cluster.recording:Recording", grid=grid)
    done, shown = lan.sweep(folder, "--storage", folder / "checkpoints", "--plugins", "/tmp/mine/my_method.py")
    assert done == 0, shown
    runs = children(f"sqlite:///{folder}/mlflow.db").values()
    assert len(runs) == 6 and {r.data.tags["pcr_ray.node"] for r in runs} >= {"h1", "h2"}
