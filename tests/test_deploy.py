"""deploy/kuberay: MLflow's manifests, with the server started by them, and the commands of the page on Kubernetes."""

from __future__ import annotations

import http.client
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.sweeping import wait_for

REPOSITORY = Path(__file__).parent.parent
DEPLOY = REPOSITORY / "deploy/kuberay"
PAGE = (REPOSITORY / "docs/kubernetes.md").read_text()
MLFLOW = {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all((DEPLOY / "mlflow.yaml").read_text())}


def container(kind: str, name: str) -> dict[str, Any]:
    return MLFLOW[kind, name]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("path", [DEPLOY / "mlflow.yaml", DEPLOY / "storage.yaml"], ids=lambda p: p.name)
def test_the_objects_are_valid(path: Path) -> None:
    for part in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(part, kubernetes_validate.latest_version(), strict=True)


def test_services_and_policies_point_at_the_pods_they_are_for() -> None:
    for name, kind in (("mlflow", "Deployment"), ("mlflow-database", "StatefulSet")):
        labels = MLFLOW[kind, name]["spec"]["template"]["metadata"]["labels"]
        assert (
            MLFLOW["Service", name]["spec"]["selector"]
            == MLFLOW[kind, name]["spec"]["selector"]["matchLabels"]
            == labels
        )
        (port,) = MLFLOW["Service", name]["spec"]["ports"]
        assert port["port"] == container(kind, name)["ports"][0]["containerPort"]
    policy = MLFLOW["NetworkPolicy", "mlflow-database"]["spec"]
    assert policy["podSelector"] == MLFLOW["StatefulSet", "mlflow-database"]["spec"]["selector"]


def test_the_password_is_in_no_file_and_both_sides_read_the_same_secret() -> None:
    found = [
        e["valueFrom"]["secretKeyRef"]
        for c in (container("Deployment", "mlflow"), container("StatefulSet", "mlflow-database"))
        for e in c["env"]
        if "PASSWORD" in e["name"]
    ]
    assert found == [{"name": "mlflow-database", "key": "password"}] * 2
    assert not any(kind == "Secret" for kind, _ in MLFLOW)
    create = "kubectl -n ml create secret generic mlflow-database --from-literal=password="
    assert create in PAGE and create in (DEPLOY / "mlflow.yaml").read_text()


@pytest.mark.slow
def test_the_server_starts_as_the_manifest_says_and_answers_to_its_names_only(tmp_path: Path, postgresql: str) -> None:
    """With a PostgreSQL elsewhere, but by the manifest's driver; on a free port."""
    spec = container("Deployment", "mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {"--host": "--host=127.0.0.1", "--port": f"--port={port}", "--workers": "--workers=1",
              "--artifacts-destination": f"--artifacts-destination={tmp_path}"}  # fmt: skip
    words = [places.get(a.split("=")[0], a) for a in spec["command"][1:] + spec["args"]]
    env = {e["name"]: e["value"] for e in spec["env"] if "value" in e}
    driver = env["MLFLOW_BACKEND_STORE_URI"].partition("://")[0]
    env["MLFLOW_BACKEND_STORE_URI"] = f"{driver}://{postgresql.partition('://')[2]}"
    log = (tmp_path / "log.txt").open("w")
    command = [sys.executable, "-m", spec["command"][0], *words]
    server = subprocess.Popen(command, env=os.environ | env, stdout=log, stderr=log, start_new_session=True)

    def answer(host: str, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", path, headers={"Host": host})
            return connection.getresponse().status
        except OSError:
            return 0

    try:
        # What the kubelet asks, by the pod's address.
        wait_for(lambda: answer("10.1.2.3:5000", spec["readinessProbe"]["httpGet"]["path"]) == 200, "MLflow", 180)
        look = "/api/2.0/mlflow/experiments/get?experiment_id=0"
        full = ["mlflow", "ml", "svc", "cluster", "local"]
        names = [".".join(full[:n]) for n in (1, 2, 3, 5)] + ["localhost", "127.0.0.1"]
        assert {n: answer(f"{n}:5000", look) for n in names} == dict.fromkeys(names, 200)
        assert answer("elsewhere:5000", look) == 403
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def commands(start: str, page: str = PAGE) -> list[str]:
    blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```", page)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split(" | ")[0].split("  #")[0] for line in lines if line.startswith(start)]


IN_THE_README = [c.lower() for c in commands("pcr-ray submit kuberay", (REPOSITORY / "README.md").read_text())]


@pytest.mark.parametrize("command", commands("pcr-ray submit") + IN_THE_README)
def test_the_pages_submit_commands_print_what_they_promise(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submit = pytest.importorskip("pcr_ray.submit")
    monkeypatch.chdir(REPOSITORY)
    words = [w for w in shlex.split(command)[2:] if w != "--print"]
    assert submit.main([*words, "--print"]) == 0
    assert [o["kind"] for o in yaml.safe_load_all(capsys.readouterr().out)] == ["ConfigMap", "RayJob"]


def test_the_page_applies_files_that_exist() -> None:
    files = [word for line in commands("kubectl") for word in line.split() if word.endswith(".yaml")]
    assert files and all((REPOSITORY / f).is_file() for f in files)
