"""Applying, watching and cancelling a RayJob through the real Kubernetes client.

There is no API server to be had in tests: a small HTTP server plays its part, with the paths, codes and error bodies
that the API documents for these objects, and acts as the KubeRay operator where a test says so.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from pcr_ray.clusters import BACKENDS, Backend, Job, _kubernetes
from pcr_ray.errors import InputError, NotNowError

pytest.importorskip("kubernetes")
FILE = Path(__file__).parent.parent / "sweeps/quickstart.yaml"
HANDLE = "kuberay/ml/pcr-quickstart-ed4f0b"


class Api(ThreadingHTTPServer):
    """Objects by path, and what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.logs: dict[str, str] = {}
        self.forbidden = self.without_kuberay = False
        self.trouble = 0  # the code of every answer
        self.lingering = 0  # how often a deleted object is still seen

    def job(self) -> dict[str, Any]:
        (found,) = [o for path, o in self.objects.items() if "/rayjobs/" in path]
        return found

    def add_pod(self, name: str, phase: str, created: str, log: str) -> None:
        labels = {"batch.kubernetes.io/job-name": HANDLE.split("/")[2]}
        metadata = {"name": name, "uid": name, "labels": labels, "creationTimestamp": created}
        self.objects[f"/api/v1/namespaces/ml/pods/{name}"] = {"metadata": metadata, "status": {"phase": phase}}
        self.logs[name] = log


class Handler(BaseHTTPRequestHandler):
    server: Api
    protocol_version = "HTTP/1.1"

    def answer(self, code: int, content: Any) -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, code: int, message: str) -> None:
        self.answer(code, {"kind": "Status", "status": "Failure", "message": message, "code": code})

    def handle_request(self) -> None:
        api, url = self.server, urlsplit(self.path)
        path, query = url.path, parse_qs(url.query)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        api.asked.append(f"{self.command} {path}")
        if api.trouble:
            return self.refuse(api.trouble, "etcdserver: request timed out")
        if api.forbidden:
            return self.refuse(403, f'User "jane" cannot {self.command.lower()} {path}')
        if api.without_kuberay and "/ray.io/" in path:
            return self.answer(404, "404 page not found\n")
        if log := re.fullmatch(r"/api/v1/namespaces/ml/pods/([^/]+)/log", path):
            return self.answer(200, api.logs[log[1]])
        if self.command == "POST":
            api.objects[f"{path}/{body['metadata']['name']}"] = body
            return self.answer(201, body)
        if "labelSelector" in query:
            key, _, value = query["labelSelector"][0].partition("=")
            found = [
                o for p, o in list(api.objects.items()) if p.startswith(path) and o["metadata"]["labels"][key] == value
            ]
            return self.answer(200, {"kind": "PodList", "apiVersion": "v1", "items": found})
        if path not in api.objects:
            return self.refuse(404, f"{path} not found")
        if self.command == "DELETE":
            assert "/rayjobs/" not in path or query["propagationPolicy"] == ["Foreground"]
            api.objects[path]["deleted"] = api.lingering
        if self.command == "PUT":
            api.objects[path] = body
        content = api.objects[path]
        if "deleted" in content:
            if content["deleted"] == 0:
                del api.objects[path]
            content["deleted"] -= 1
        return self.answer(200, content)

    do_GET = do_POST = do_PUT = do_DELETE = handle_request

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    server = Api()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kubeconfig = {
        "apiVersion": "v1", "kind": "Config", "current-context": "test", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    # The client reads it once, when it is imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    monkeypatch.setattr(_kubernetes, "POLL_SECONDS", 0.01)
    yield server
    server.shutdown()
    server.server_close()


def backend() -> Backend:
    kind, parser = BACKENDS.get("kuberay"), argparse.ArgumentParser()
    kind.add_arguments(parser)
    needed = ["--image", "pcr-ray:1", "--storage-claim", "sweeps", "--namespace", "ml"]
    return kind(parser.parse_args(needed))


def submit() -> str:
    return backend().submit(
        Job("quickstart", FILE, FILE.read_text(), Path.cwd(), ["--tracking-uri", "http://mlflow:5000"])
    )


def test_submit_creates_what_print_prints(api: Api) -> None:
    assert submit() == HANDLE
    job = Job("quickstart", FILE, FILE.read_text(), Path.cwd(), ["--tracking-uri", "http://mlflow:5000"])
    assert list(api.objects.values()) == list(yaml.safe_load_all(backend().render(job)))
    assert [p.rsplit("/", 1)[0] for p in api.objects] == [
        "/api/v1/namespaces/ml/configmaps",
        "/apis/ray.io/v1/namespaces/ml/rayjobs",
    ]


def test_a_running_job_is_left_alone(api: Api) -> None:
    submit()
    api.job()["status"] = {"jobDeploymentStatus": "Running"}
    api.asked.clear()
    with pytest.raises(NotNowError, match=r"is there already \(Running\)"):
        submit()
    assert not [a for a in api.asked if not a.startswith("GET")]


@pytest.mark.parametrize("ended", ["Complete", "Failed"])
def test_a_job_that_ended_makes_room_for_the_next(api: Api, ended: str) -> None:
    submit()
    api.job()["status"] = {"jobDeploymentStatus": ended}
    api.lingering = 3  # its pods need their time
    submit()
    assert "status" not in api.job()
    deleted = api.asked.index(f"DELETE /apis/ray.io/v1/namespaces/ml/rayjobs/{HANDLE.split('/')[2]}")
    created = len(api.asked) - 1 - api.asked[::-1].index("POST /apis/ray.io/v1/namespaces/ml/rayjobs")
    assert deleted + 3 < created


def test_status_is_one_line_in_words(api: Api) -> None:
    submit()
    assert backend().status(HANDLE) == f"{HANDLE}: accepted, not started"
    workers = {"availableWorkerReplicas": 2, "desiredWorkerReplicas": 3}
    api.job()["status"] = {
        "jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterStatus": workers, "failed": 1,
    }  # fmt: skip
    assert backend().status(HANDLE) == f"{HANDLE}: Running, sweep running, 2 of 3 workers, failed attempts: 1 of 4"
    api.job()["status"] = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": "exit\n code 1"}
    assert backend().status(HANDLE) == f"{HANDLE}: Failed, sweep failed, exit code 1"


def test_logs_come_from_the_newest_attempt(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    submit()
    with pytest.raises(NotNowError, match="no output yet"):
        backend().logs(HANDLE, follow=False)
    api.add_pod("first", "Failed", "2026-01-01T00:00:00Z", "old\n")
    api.add_pod("second", "Running", "2026-01-01T00:05:00Z", "[bold]27 trials :rocket:\nno end of line")
    api.add_pod("third", "Pending", "2026-01-01T00:10:00Z", "not started")
    backend().logs(HANDLE, follow=False)
    assert capsys.readouterr().out == "[bold]27 trials :rocket:\nno end of line\n"


def wait_for(api: Api, request: str) -> None:
    deadline = time.monotonic() + 20
    while not any(asked.endswith(request) for asked in list(api.asked)):
        assert time.monotonic() < deadline, api.asked[-5:]
        time.sleep(0.01)


def test_following_goes_on_through_a_retry_until_the_job_ends(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    submit()
    api.job()["status"] = {"jobDeploymentStatus": "Running"}
    api.add_pod("first", "Running", "2026-01-01T00:00:00Z", "task 1\n")
    following = threading.Thread(target=backend().logs, args=(HANDLE,), kwargs={"follow": True})
    following.start()
    wait_for(api, "first/log")
    del api.objects["/api/v1/namespaces/ml/pods/first"]  # KubeRay: a new cluster, a new submitter
    api.add_pod("second", "Running", "2026-01-01T00:05:00Z", "continued, done\n")
    wait_for(api, "second/log")
    assert following.is_alive()
    api.job()["status"] = {"jobDeploymentStatus": "Complete"}
    following.join(10)
    assert not following.is_alive() and capsys.readouterr().out == "task 1\ncontinued, done\n"


def test_cancel_removes_both_objects(api: Api) -> None:
    submit()
    backend().cancel(HANDLE)
    assert api.objects == {}
    with pytest.raises(InputError, match=f"there is no job {HANDLE}"):
        backend().cancel(HANDLE)


def test_what_the_api_server_refuses_is_told_with_the_next_step(api: Api) -> None:
    api.forbidden = True
    with pytest.raises(InputError, match=r"(?s)\"jane\" cannot.*kubectl auth can-i create rayjobs.ray.io"):
        submit()
    api.forbidden, api.without_kuberay = False, True
    with pytest.raises(InputError, match="Is KubeRay installed"):
        submit()


@pytest.mark.parametrize("code", [409, 429, 500, 503])
def test_trouble_that_passes_is_told_apart_from_a_refusal(api: Api, code: int) -> None:
    api.trouble = code
    with pytest.raises(NotNowError, match=r"(?s)request timed out.*again"):
        submit()


def test_nobody_there_is_said_in_seconds(api: Api) -> None:
    api.shutdown()
    api.server_close()
    with pytest.raises(NotNowError, match="does not answer"):
        submit()


def test_without_a_cluster_or_a_client_print_is_pointed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(InputError, match="no Kubernetes cluster is configured"):
        submit()
    monkeypatch.setitem(__import__("sys").modules, "kubernetes", None)
    with pytest.raises(InputError, match=r"--print \| kubectl apply --server-side -f - .*delete rayjob"):
        submit()


@pytest.mark.parametrize("handle", ["kuberay/ml", "slurm/12", "kuberay/ml/A", "kuberay/../x"])
def test_a_handle_that_is_none_is_refused(handle: str) -> None:
    with pytest.raises(InputError, match="kuberay/NAMESPACE/NAME"):
        backend().status(handle)
