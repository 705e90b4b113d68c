"""The Kubernetes API for one RayJob: apply, status, logs, cancel. The only file with the `kubernetes` client."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from pcr_ray.errors import InputError, NotNowError

GROUP, VERSION, PLURAL = "ray.io", "v1", "rayjobs"
ENDED = ("Complete", "Failed")  # of jobDeploymentStatus
POLL_SECONDS = 2.0
GONE_SECONDS = 180  # for the old job's pods to end, before its name is free
TIMEOUT = (5, 60)  # seconds to connect and to answer
DAY = 86_400
PASSING = (409, 429)  # someone else changed it at the same moment; too many requests
NO_CLIENT = (
    "the Kubernetes client is not installed: pip install 'pcr_ray[kubernetes]', "
    "or let kubectl do it: pcr-ray submit kuberay ... --print | kubectl apply --server-side -f - "
    "(before submitting a sweep again: kubectl -n NAMESPACE delete rayjob NAME)"
)


class Kubernetes:
    """The cluster of the current kubeconfig context, or the one that this process runs in."""

    def __init__(self) -> None:
        try:
            from kubernetes import client, config
        except ImportError:
            raise InputError(NO_CLIENT) from None
        settings = client.Configuration()
        try:
            try:
                config.load_kube_config(client_configuration=settings)
            except config.ConfigException:
                config.load_incluster_config(client_configuration=settings)
        except Exception as error:  # a damaged file raises what its parser raises
            raise InputError(
                f"no Kubernetes cluster is configured: {error}\n  kubectl config current-context says which one it "
                "would be; KUBECONFIG names another file"
            ) from None
        settings.retries = 1
        self.host = settings.host
        api = client.ApiClient(settings)
        self.core: Any = client.CoreV1Api(api)
        self.custom: Any = client.CustomObjectsApi(api)
        self.ApiException = client.ApiException

    def apply(self, config_map: dict[str, Any], ray_job: dict[str, Any]) -> None:
        """Create both; a job of that name that has ended makes room, one that runs does not."""
        namespace, name = ray_job["metadata"]["namespace"], ray_job["metadata"]["name"]
        with self._explained(namespace):
            old = self._find(namespace, name)
            if old is not None and not _ended(old):
                raise NotNowError(
                    f"kuberay/{namespace}/{name} is there already ({_deployment(old) or 'new'}): "
                    "wait for it, or cancel it"
                )
            if old is not None:
                self._delete(namespace, name)
            self._put(namespace, name, config_map)
            self.custom.create_namespaced_custom_object(
                GROUP, VERSION, namespace, PLURAL, ray_job, _request_timeout=TIMEOUT
            )

    def status(self, namespace: str, name: str) -> str:
        with self._explained(namespace):
            job = self._get(namespace, name)
        found = job.get("status", {})
        cluster = found.get("rayClusterStatus", {})
        parts = [_deployment(job) or "accepted, not started"]
        if found.get("jobStatus"):
            parts.append(f"sweep {found['jobStatus'].lower()}")
        if not _ended(job) and "desiredWorkerReplicas" in cluster:
            parts.append(f"{cluster.get('availableWorkerReplicas', 0)} of {cluster['desiredWorkerReplicas']} workers")
        if found.get("failed"):
            parts.append(f"failed attempts: {found['failed']} of {job['spec'].get('backoffLimit', 0) + 1}")
        if found.get("message"):
            parts.append(" ".join(found["message"].split()))
        return ", ".join(parts)

    def logs(self, namespace: str, name: str, *, follow: bool) -> None:
        """What the driver prints, from the pod that submitted it; each retry has a pod of its own."""
        seen: set[str] = set()
        with self._explained(namespace):
            while True:
                job = self._get(namespace, name)
                pod = self._submitter(namespace, name)
                if pod is not None and pod.metadata.uid not in seen:
                    seen.add(pod.metadata.uid)
                    self._print_log(namespace, pod.metadata.name, follow)
                if not seen and not follow:
                    raise NotNowError(f"kuberay/{namespace}/{name} has no output yet ({_deployment(job) or 'new'})")
                if not follow or _ended(job):
                    return
                time.sleep(POLL_SECONDS)

    def cancel(self, namespace: str, name: str) -> None:
        with self._explained(namespace):
            self._get(namespace, name)
            self._delete(namespace, name)
            with self._missing_is_fine():
                self.core.delete_namespaced_config_map(name, namespace, _request_timeout=TIMEOUT)

    def _find(self, namespace: str, name: str) -> dict[str, Any] | None:
        with self._missing_is_fine():
            return self.custom.get_namespaced_custom_object(
                GROUP, VERSION, namespace, PLURAL, name, _request_timeout=TIMEOUT
            )
        return None

    def _get(self, namespace: str, name: str) -> dict[str, Any]:
        job = self._find(namespace, name)
        if job is None:
            raise InputError(f"there is no job kuberay/{namespace}/{name} on {self.host}: submit it first")
        return job

    def _put(self, namespace: str, name: str, config_map: dict[str, Any]) -> None:
        with self._missing_is_fine():
            self.core.replace_namespaced_config_map(name, namespace, config_map, _request_timeout=TIMEOUT)
            return
        self.core.create_namespaced_config_map(namespace, config_map, _request_timeout=TIMEOUT)

    def _delete(self, namespace: str, name: str) -> None:
        """Gone with its cluster: its pods hold the sweep's lock until they have ended."""
        with self._missing_is_fine():
            self.custom.delete_namespaced_custom_object(
                GROUP, VERSION, namespace, PLURAL, name, propagation_policy="Foreground", _request_timeout=TIMEOUT
            )
        deadline = time.monotonic() + GONE_SECONDS
        while self._find(namespace, name) is not None:
            if time.monotonic() > deadline:
                raise NotNowError(f"kuberay/{namespace}/{name} is still being deleted: try again in a minute")
            time.sleep(POLL_SECONDS)

    def _submitter(self, namespace: str, name: str) -> Any | None:
        """The newest pod of the Kubernetes Job that KubeRay names like the RayJob, once it has started."""
        pods = self.core.list_namespaced_pod(
            namespace, label_selector=f"batch.kubernetes.io/job-name={name}", _request_timeout=TIMEOUT
        ).items
        started = [p for p in pods if p.status.phase in ("Running", "Succeeded", "Failed")]
        return max(started, key=lambda p: p.metadata.creation_timestamp, default=None)

    def _print_log(self, namespace: str, pod: str, follow: bool) -> None:
        timeout = (TIMEOUT[0], DAY) if follow else TIMEOUT  # a sweep may print nothing for hours
        answer = self.core.read_namespaced_pod_log(
            pod, namespace, follow=follow, _preload_content=False, _request_timeout=timeout
        )
        rest = b""
        for chunk in answer.stream():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                _print(line)
        if rest:
            _print(rest)

    @contextlib.contextmanager
    def _missing_is_fine(self) -> Iterator[None]:
        try:
            yield
        except self.ApiException as error:
            if error.status != 404:
                raise

    @contextlib.contextmanager
    def _explained(self, namespace: str) -> Iterator[None]:
        """What the API server says when it refuses, or that there is none, as one message."""
        from urllib3.exceptions import HTTPError

        try:
            yield
        except self.ApiException as error:
            said = _message(error)
            if error.status == 404:
                said += (
                    f"\n  Is KubeRay installed (kubectl get crd rayjobs.ray.io), and is there a namespace {namespace}?"
                )
            if error.status in (401, 403):
                said += f"\n  Ask for the rights: kubectl auth can-i create rayjobs.ray.io --namespace {namespace}"
            if error.status in PASSING or (error.status or 0) >= 500:
                raise NotNowError(f"Kubernetes ({self.host}) cannot do this now: {said}\n  Try again later.") from None
            raise InputError(f"Kubernetes ({self.host}) refused: {said}") from None
        except HTTPError as error:
            raise NotNowError(f"the Kubernetes API server {self.host} does not answer: {error}") from None


def _deployment(job: dict[str, Any]) -> str:
    return job.get("status", {}).get("jobDeploymentStatus", "")


def _ended(job: dict[str, Any]) -> bool:
    return _deployment(job) in ENDED


def _print(line: bytes) -> None:
    print(line.decode(errors="replace"), flush=True)  # as it is: rich would change what looks like an emoji's name


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
