"""The Kubernetes objects of one sweep: a ConfigMap with its files and a RayJob (`ray.io/v1`). Plain data, no client."""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import yaml

Manifest = dict[str, Any]

UID = 1000  # the image's user: files on the claim belong to it, whichever pod wrote them
FILES = "/etc/pcr-ray"  # the ConfigMap in every pod: the sweep file, and plugins on the import path
SHARED = "/mnt/pcr-ray"  # the claim in every pod: data, checkpoints and reports, so that a new cluster continues
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
LONGEST_NAME = 47  # KubeRay refuses longer ones: it appends to them
GRACE_SECONDS = 120  # Ray drains a node in up to 30 s; a task's checkpoint may be under way on slow storage
EVERYWHERE = "0.0.0.0"  # a pod has an address of its own # nosec B104
IDLE_SECONDS = 120  # a worker without trials is given back after this
HEAD = {"cpu": "2", "memory": "8Gi"}  # the driver, Ray's control plane and dashboard: no trials
SUBMITTER = {"cpu": "500m", "memory": "1Gi"}  # runs `ray job submit` and shows the log
AUTOSCALER = {"cpu": "500m", "memory": "1Gi"}


@dataclass(frozen=True)
class Wish:
    """What a user asks of Kubernetes, checked."""

    sweep: str
    arguments: list[str]  # of `python -m pcr_ray.sweep`, after FILE
    files: dict[str, str]  # name to text: sweep.yaml and plugins
    image: str
    ray_version: str
    claim: str
    workers: tuple[int, int]
    autoscaling: bool
    cpus: str
    memory: str
    gpus: int = 0
    namespace: str = "default"
    queue: str | None = None
    secret: str | None = None
    tracking_uri: str | None = None
    tolerations: list[dict[str, str]] = field(default_factory=list)
    selector: dict[str, str] = field(default_factory=dict)
    retries: int = 3
    ttl: int = 600


def object_name(sweep: str) -> str:
    """A name that Kubernetes and KubeRay take, the same for the same sweep and another for every other."""
    slug = re.sub(r"[^a-z0-9]+", "-", sweep.lower()).strip("-")
    digest = hashlib.sha256(sweep.encode()).hexdigest()[:6]
    room = LONGEST_NAME - len("pcr--") - len(digest)
    return "-".join(filter(None, ["pcr", slug[:room].strip("-"), digest]))


def dump(objects: list[Manifest]) -> str:
    """YAML documents, files as readable blocks, the same bytes every time."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, explicit_start=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # kubectl reads anchors, people do not like to


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
# What kubectl reads as numbers and truth values and PyYAML does not: as text it has to be quoted.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(\.[0-9_]+|[0-9_]+(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?)$"
    ),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("[yYnN]$"), list("yYnN"))


def manifests(wish: Wish) -> list[Manifest]:
    return [config_map(wish), ray_job(wish)]


def config_map(wish: Wish) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(wish), "data": dict(wish.files)}


def ray_job(wish: Wish) -> Manifest:
    metadata = _metadata(wish)
    if wish.queue:
        metadata["labels"][QUEUE_LABEL] = wish.queue
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": entrypoint(wish),
            "submissionMode": "K8sJobMode",
            "backoffLimit": wish.retries,  # each retry is a new cluster: it continues from the claim
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": wish.ttl,
            "rayClusterSpec": _cluster(wish),
            "submitterPodTemplate": {"spec": _pod(wish, _container(wish, "submitter", SUBMITTER), mounts=False)},
        },
    }


def entrypoint(wish: Wish) -> str:
    """Read by a shell in the submitter, and joined again by Ray for the one on the head: quoted once."""
    runs = f"{SHARED}/runs"
    places = ["--out", runs, "--storage", f"{runs}/{wish.sweep}/checkpoints", "--data-root", f"{SHARED}/data"]
    command = ["python", "-m", "pcr_ray.sweep", f"{FILES}/sweep.yaml", "--address", "auto", *places, *wish.arguments]
    return shlex.join(command)


def _metadata(wish: Wish) -> Manifest:
    return {
        "name": object_name(wish.sweep),
        "namespace": wish.namespace,
        "labels": {"app.kubernetes.io/name": "pcr-ray", "app.kubernetes.io/managed-by": "pcr-ray"},
        "annotations": {"pcr-ray/sweep": wish.sweep},
    }


def _cluster(wish: Wish) -> Manifest:
    low, high = wish.workers
    spec: Manifest = {
        "rayVersion": wish.ray_version,
        "authOptions": {"mode": "token"},  # a random token per cluster, in a Secret that KubeRay makes
        "enableInTreeAutoscaling": wish.autoscaling,
    }
    if wish.autoscaling:
        spec["autoscalerOptions"] = {
            "version": "v2",
            "idleTimeoutSeconds": IDLE_SECONDS,
            "resources": _resources(AUTOSCALER),
            "securityContext": _locked_down(),
        }
    spec["headGroupSpec"] = {
        "rayStartParams": {"dashboard-host": EVERYWHERE, "num-cpus": "0"},  # trials run on workers only
        # The autoscaler talks to Kubernetes; nothing else here does.
        "template": {"spec": _pod(wish, _head(wish)) | {"automountServiceAccountToken": wish.autoscaling}},
    }
    worker = _container(wish, "ray-worker", {"cpu": wish.cpus, "memory": wish.memory}, wish.gpus)
    spec["workerGroupSpecs"] = [
        {
            "groupName": "workers",
            "replicas": low,
            "minReplicas": low,
            "maxReplicas": high,
            "rayStartParams": {},
            "template": {"spec": _pod(wish, worker) | _placement(wish)},
        }
    ]
    return spec


def _head(wish: Wish) -> Manifest:
    """The driver runs here, so only this container gets the Secret and the tracking store."""
    container = _container(wish, "ray-head", HEAD)
    container["ports"] = [
        {"name": "gcs-server", "containerPort": 6379},
        {"name": "dashboard", "containerPort": 8265},
        {"name": "client", "containerPort": 10001},
    ]
    if wish.tracking_uri:
        container["env"] = [*container.get("env", []), {"name": "MLFLOW_TRACKING_URI", "value": wish.tracking_uri}]
    if wish.secret:
        container["envFrom"] = [{"secretRef": {"name": wish.secret}}]
    return container


def _container(wish: Wish, name: str, amounts: dict[str, str], gpus: int = 0) -> Manifest:
    container: Manifest = {
        "name": name,
        "image": wish.image,
        "imagePullPolicy": "IfNotPresent",
        "resources": _resources(amounts | ({"nvidia.com/gpu": str(gpus)} if gpus else {})),
        "securityContext": _locked_down(),
    }
    if len(wish.files) > 1:
        container["env"] = [{"name": "PYTHONPATH", "value": FILES}]
    return container


def _pod(wish: Wish, container: Manifest, *, mounts: bool = True) -> Manifest:
    pod: Manifest = {
        "restartPolicy": "Never",  # the autoscaler needs it; retries are the RayJob's
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if mounts:
        container["volumeMounts"] = [
            {"name": "files", "mountPath": FILES, "readOnly": True},
            {"name": "shared", "mountPath": SHARED},
        ]
        pod["volumes"] = [
            {"name": "files", "configMap": {"name": object_name(wish.sweep)}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": wish.claim}},
        ]
    return pod


def _placement(wish: Wish) -> Manifest:
    placement: Manifest = {}
    if wish.selector:
        placement["nodeSelector"] = dict(wish.selector)
    if wish.tolerations:
        placement["tolerations"] = [dict(t) for t in wish.tolerations]
    return placement


def _resources(amounts: dict[str, str]) -> Manifest:
    """Limits equal requests: a pod that is evicted for another's sake costs more than it saves."""
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _locked_down() -> Manifest:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
