"""What keeps a cluster from running a sweep is told in one message, before anything is recorded."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import Host, Lan, tell
from tests.made_images import random_splits, write_folder
from tests.sweeping import REPOSITORY, children, sweep_file, wait_for

pytestmark = pytest.mark.cluster
SMALL = {"method": ["er"], "seed": [0, 1, 2]}
IMAGES = {"dataset": "folder", "folder": "made", "image_size": 12, "tasks": 2, "buffer": 10}


def recorded(folder: Path) -> int:
    """Runs of any kind in MLflow."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    return len(client.search_runs([client.get_experiment_by_name("pcr_ray").experiment_id]))


def problems(text: str) -> list[str]:
    return [line.removeprefix("  - ") for line in text.splitlines() if line.startswith("  - ")]


def without_the_package(host: Host) -> None:
    """Neither installed nor as a checkout."""
    for place in (REPOSITORY / name for name in ("pcr_ray", "trainables", "tests")):
        host.run("mount", "-t", "tmpfs", "tmpfs", place)
    for file in Path(next(p for p in sys.path if p.endswith("site-packages"))).glob("__editable__*pcr_ray*"):
        host.run("mount", "--bind", "/dev/null", file)


@pytest.fixture(scope="module")
def uneven(lan: Lan) -> Lan:
    """h2 has other code, h3 none."""
    lan.off()
    lan.join("h1")
    h2, h3 = lan.add("h2"), lan.add("h3")
    h2.run("mkdir", "/tmp/other")
    h2.run("cp", "-r", REPOSITORY / "pcr_ray", REPOSITORY / "trainables", "/tmp/other")
    h2.run("sh", "-c", "echo 'CHANGED = 1' >> /tmp/other/pcr_ray/methods/er.py")
    without_the_package(h3)
    lan.join("h2", PYTHONPATH="/tmp/other")
    lan.join("h3", PYTHONPATH="")
    return lan


def test_every_problem_of_every_node_is_in_one_message_and_nothing_is_recorded(uneven: Lan, folder: Path) -> None:
    """Storage that may only be read there, data that only the head has, other code, no code."""
    storage = folder / "checkpoints"
    storage.mkdir()
    source = folder / "elsewhere" / "made"  # not beside the sweep file, where h2 would find it
    write_folder(source, random_splits(["a", "b"], 12))
    uneven.head.run("sh", "-c", f"mkdir -p /tmp/data && cp -r {source} /tmp/data/made")
    for options in (["--bind", storage, storage], ["-o", "remount,ro,bind", storage]):
        uneven.hosts["h2"].run("mount", *options)
    sweep_file(folder, fixed=IMAGES, grid=SMALL)
    code, text = uneven.sweep(folder, "--storage", storage)
    uneven.hosts["h2"].run("umount", storage)
    assert code == 2 and "Traceback" not in text, text
    assert "2 of 3 nodes cannot run this: 4 problems" in text, text
    data, changed, written, absent = problems(text)
    assert data.startswith(f"h2: image folder {folder}/made or /tmp/data/made does not exist")
    assert changed.startswith("h2: other code than here (pcr_ray/methods/er.py)") and "--ship" in changed
    assert written.startswith(f"h2: the storage {storage} cannot be written to there") and "Read-only" in written
    assert absent.startswith("h3: pcr_ray cannot be imported there (ModuleNotFoundError") and "--ship" in absent
    assert recorded(folder) == 0 and not list(storage.iterdir())


def test_code_is_shipped_to_nodes_with_other_code_or_none(uneven: Lan, folder: Path) -> None:
    sweep_file(folder, grid={"method": ["er"], "seed": {"range": [0, 6]}})
    code, text = uneven.sweep(folder, "--ship")
    assert code == 0, text
    assert {r.data.tags["pcr_ray.node"] for r in children(f"sqlite:///{folder}/mlflow.db").values()} >= {"h2", "h3"}


def test_a_head_without_cpus_and_a_worker_that_joins_later(lan: Lan, folder: Path) -> None:
    lan.off()
    lan.join("h1", cpus=0)
    sweep_file(folder, grid=SMALL)
    code, text = lan.sweep(folder, "--wait", "0.05")
    assert code == 75 and "no node that can run a trial came within --wait 0.05 minutes" in text, text
    assert recorded(folder) == 0
    driver = lan.start(folder)
    wait_for(lambda: "waiting for nodes" in (folder / "out.txt").read_text(), "the line about waiting", 90, driver)
    lan.join("h2")
    assert driver.wait(200) == 0, (folder / "out.txt").read_text()
    assert {r.data.tags["pcr_ray.node"] for r in children(f"sqlite:///{folder}/mlflow.db").values()} == {"h2"}


def test_a_node_that_is_short_of_memory_is_told_as_such(lan: Lan, folder: Path) -> None:
    """Ray kills what runs there: nothing that another version or option would mend."""
    lan.off()
    lan.join("h1", cpus=0)
    lan.join("h2", RAY_memory_usage_threshold="0", RAY_memory_monitor_refresh_ms="100")
    sweep_file(folder, grid=SMALL)
    code, text = lan.sweep(folder)
    assert code == 75 and "1 of 1 node cannot run this" in text, text
    (problem,) = problems(text)
    assert problem.startswith("h2: the check was killed there: ") and "memory" in problem, text
    assert "run the same command again later" in text and recorded(folder) == 0


def test_storage_that_nodes_do_not_share_is_refused(lan: Lan, folder: Path) -> None:
    lan.three_nodes()
    sweep_file(folder, grid=SMALL)
    code, text = lan.sweep(folder, "--storage", "/tmp/mine")
    assert code == 2 and "2 of 3 nodes cannot run this: 2 problems" in text, text
    for name, problem in zip(("h2", "h3"), problems(text)):
        assert problem.startswith(f"{name}: the storage /tmp/mine is not shared with it"), problem
    assert recorded(folder) == 0


READ_ONLY = """
from pathlib import Path
from pcr_ray.config import TrialConfig
from pcr_ray.datasets import prepare
print(prepare(TrialConfig(dataset="digits"), Path("{root}")).images.filename)
"""


def test_data_fetched_beforehand_are_used_where_the_data_root_may_only_be_read(lan: Lan, folder: Path) -> None:
    lan.three_nodes()
    fetch = [sys.executable, "-m", "pcr_ray", "datasets", "fetch", "digits", "--data-root", folder]
    assert lan.head.start(*fetch, log=lan.shared / "fetch.txt").wait(60) == 0, (lan.shared / "fetch.txt").read_text()
    for options in (["--bind", folder, folder], ["-o", "remount,ro,bind", folder]):
        lan.hosts["h2"].run("mount", *options)
    found = lan.python(READ_ONLY.format(root=folder), on="h2")
    lan.hosts["h2"].run("umount", folder)
    assert found.strip() == f"{folder}/prepared/digits/images.npy"


JOIN = """
import time
import ray.tune
from pcr_ray.errors import PcrRayError
from pcr_ray.execution import cluster
began = time.monotonic()
try:
    with cluster.connected("{address}", False):
        print("joined")
except PcrRayError as error:
    print(time.monotonic() - began, error.exit_code, error)
"""


@pytest.mark.parametrize(
    ("on", "address", "settings", "code", "said"),
    [
        ("h1", "10.77.0.11:6379", {"RAY_AUTH_TOKEN": "0" * 32}, 2, "does not accept this command's token"),
        ("h1", "auto", {"RAY_AUTH_TOKEN": "0" * 32}, 2, "does not accept this command's token"),
        ("h1", "10.77.0.11:6379", {"RAY_AUTH_TOKEN": ""}, 2, "does not accept this command's token"),
        ("h1", "10.77.0.11:6379", {"RAY_AUTH_MODE": "disabled"}, 2, "Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"),
        ("h1", "10.77.0.11:99", {}, 75, "nobody answers at --address 10.77.0.11:99"),
        ("h1", "10.77.0.99:6379", {}, 75, "nobody answers at --address 10.77.0.99:6379"),
        ("h9", "10.77.0.11:6379", {}, 75, "this machine is not a node of the Ray cluster at 10.77.0.11:6379"),
        ("h9", "auto", {}, 75, "--address auto: no Ray runs on this machine"),
    ],
)
def test_an_address_that_cannot_be_used_is_told_within_10_s(
    lan: Lan, on: str, address: str, settings: dict[str, str], code: int, said: str
) -> None:
    lan.three_nodes()
    if on == "h9":  # a machine of its own, without Ray
        lan.add("h9")
    text = lan.python(JOIN.format(address=address), on, **settings)
    if on == "h9":
        lan.hosts.pop("h9").close()
    assert said in text and text.split()[1] == str(code), text
    assert float(text.split()[0]) < 10 and len(text.splitlines()) == 2, text


def test_a_wrong_token_leaves_no_record(lan: Lan, folder: Path) -> None:
    lan.three_nodes()
    sweep_file(folder, grid=SMALL)
    code, text = lan.sweep(folder, RAY_AUTH_TOKEN="0" * 32)
    assert code == 2 and text.count("error:") == 1 and "gcs_client" not in text, text
    assert recorded(folder) == 0


def test_a_tracking_store_that_does_not_answer_is_told_before_the_cluster_is_joined(lan: Lan, folder: Path) -> None:
    lan.three_nodes()
    sweep_file(folder, grid=SMALL)
    code, text = lan.sweep(folder, "--tracking-uri", "http://me:secret@10.77.0.11:9")
    assert code == 75, text
    _, what, advice = text.splitlines()  # after the line that says where it looks
    assert what == (
        "error: the tracking store http://***@10.77.0.11:9 cannot be used: nobody answers there (Connection refused)"
    )
    assert advice.startswith("  Start it and run the same command again"), text


VERSION = """
import json
from ray._raylet import GcsClient
head = GcsClient(address="{address}")
known = json.loads(head.internal_kv_get(b"CLUSTER_METADATA", b"cluster"))
print(known["ray_version"])
known["ray_version"] = "{version}"
head.internal_kv_put(b"CLUSTER_METADATA", json.dumps(known).encode(), True, b"cluster")
"""


def test_another_version_of_ray_is_told(lan: Lan, folder: Path) -> None:
    """The head says that it is another: Ray's own check, and its own words."""
    lan.three_nodes()
    sweep_file(folder, grid=SMALL)
    true = lan.python(VERSION.format(address=lan.address, version="2.1.0")).split()[-1]
    code, text = lan.sweep(folder)
    lan.python(VERSION.format(address=lan.address, version=true))
    assert code == 2 and "different versions" in text and "Ray: 2.1.0" in text and f"Ray: {true}" in text, text
    assert recorded(folder) == 0


HOLD = """
import ray, time
ray.init("{address}", logging_level="ERROR")
ray.get(ray.util.placement_group([{{"CPU": 1}}] * 3).ready())
print("held", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def held(lan: Lan) -> Iterator[subprocess.Popen[str]]:
    """Somebody else has all of the cluster."""
    lan.three_nodes()
    log = lan.shared / "held.txt"
    process = lan.head.start(sys.executable, "-c", HOLD.format(address=lan.address), log=log, **lan.secret)
    wait_for(lambda: "held" in log.read_text(), "somebody to take all CPUs", 90)
    yield process
    if process.poll() is None:
        tell(process, signal.SIGKILL)
    process.wait(30)


def test_a_full_cluster_is_waited_for_as_long_as_asked(
    lan: Lan, folder: Path, held: subprocess.Popen[str]
) -> None:  # fmt: skip
    sweep_file(folder, grid=SMALL)
    code, text = lan.sweep(folder, "--wait", "0.2")
    assert code == 75, text
    assert "waiting for resources" in text and "a trial needs 1 CPU; of 3 CPU 0 are free" in text
    assert "no trial could start within --wait 0.2 minutes" in text
    assert "--rerun failed" not in text and not re.search(r"[1-9]\d* failed", text), text
    assert not [r for r in children(f"sqlite:///{folder}/mlflow.db").values() if r.info.status != "KILLED"]
    driver = lan.start(folder)
    wait_for(lambda: "waiting for resources" in (folder / "out.txt").read_text(), "the line about waiting", 90, driver)
    tell(held, signal.SIGKILL)
    assert driver.wait(200) == 0, (folder / "out.txt").read_text()
    assert {r.info.status for r in children(f"sqlite:///{folder}/mlflow.db").values()} == {"FINISHED"}
