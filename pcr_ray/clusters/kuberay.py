"""Kubernetes with KubeRay: a sweep as a RayJob whose workers come and go, or wait in a Kueue queue."""

from __future__ import annotations

import argparse
import json
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pcr_ray.clusters import _rayjob
from pcr_ray.clusters._base import BACKENDS, LOOPBACK, Backend, Job
from pcr_ray.clusters._rayjob import SHARED, Wish
from pcr_ray.errors import InputError, problems_error
from pcr_ray.study import load as study
from pcr_ray.study.reader import read_yaml
from pcr_ray.study.schema import GPU_SHARE

if TYPE_CHECKING:
    from pcr_ray.clusters._kubernetes import Kubernetes

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
OBJECT = rf"{LABEL}(\.{LABEL})*"  # what Kubernetes calls a DNS subdomain
WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
KEY = rf"({OBJECT}/)?{WORD}"  # of a label or a taint
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MOST_BYTES = 1_000_000  # etcd takes objects up to about 1 MiB
LEAST_BYTES = 2**28  # of a worker's memory: less is a forgotten unit, 16 for 16Gi
PLACES = ("--out", "--storage", "--data-root", "--address")  # decided by the claim and the cluster


@BACKENDS.register("kuberay")
class KubeRay(Backend):
    """Handles are `kuberay/NAMESPACE/NAME`."""

    title = "Kubernetes"
    summary = "a RayJob on Kubernetes, by way of the KubeRay operator"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--image", metavar="IMG", help="the image with pcr_ray (see Dockerfile)")
        add("--workers", default="0:4", metavar="MIN:MAX",
            help="worker pods: MIN:MAX grows and shrinks with the work, N is fixed (default: %(default)s)")  # fmt: skip
        add("--gpus-per-worker", type=int, default=0, metavar="N", help="NVIDIA GPUs of a worker (default: 0)")
        add("--cpus-per-worker", type=float, default=4, metavar="N", help="CPUs of a worker (default: 4)")
        add("--memory-per-worker", default="16Gi", metavar="SIZE", help="memory of a worker (default: %(default)s)")
        add("--storage-claim", metavar="NAME",
            help="PersistentVolumeClaim that all pods mount (ReadWriteMany): data, checkpoints, reports")  # fmt: skip
        add("--queue", metavar="NAME", help="the Kueue queue to wait in; needs a fixed number of workers")
        add("--namespace", default="default", metavar="NAME", help="where the job runs (default: %(default)s)")
        add("--secret", metavar="NAME", help="Secret whose keys become environment variables of the driver")
        add("--toleration", action="append", default=[], metavar="KEY=VALUE:EFFECT",
            help="a taint that workers tolerate; KEY:EFFECT for any value")  # fmt: skip
        add("--node-selector", action="append", default=[], metavar="KEY=VALUE", help="nodes that workers go to")
        add("--retries", type=int, default=3, metavar="N", help="new clusters after a failed one (default: 3)")
        add("--ttl", type=int, default=600, metavar="SECONDS",
            help="how long the cluster stays after the job ended (default: 600)")  # fmt: skip

    def render(self, job: Job) -> str:
        return _rayjob.dump(_rayjob.manifests(self._wish(job)))

    def submit(self, job: Job) -> str:
        wish = self._wish(job)
        _api().apply(*_rayjob.manifests(wish))
        return f"{self.name}/{wish.namespace}/{_rayjob.object_name(wish.sweep)}"

    def status(self, handle: str) -> str:
        namespace, name = _parts(handle)
        return f"{handle}: {_api().status(namespace, name)}"

    def logs(self, handle: str, follow: bool) -> None:
        namespace, name = _parts(handle)
        _api().logs(namespace, name, follow=follow)

    def cancel(self, handle: str) -> None:
        namespace, name = _parts(handle)
        _api().cancel(namespace, name)

    def _wish(self, job: Job) -> Wish:
        """The options checked, with all their problems in one message."""
        o = self.options
        problems: list[str] = []
        workers, autoscaling = _workers(o.workers, o.queue, problems)
        tracking = job.option("--tracking-uri")
        problems += _problems_of_names(o) + _problems_of_amounts(o) + _problems_of_tracking(tracking, o.secret)
        arguments = _sweep_arguments(job.arguments, problems)
        arguments += ["--set", f"resources={_resources(job, o, problems)}"]
        wish = Wish(
            sweep=job.name,
            arguments=arguments,
            files=_files(job, problems),
            image=o.image or "",
            ray_version=version("ray"),
            claim=o.storage_claim or "",
            workers=workers,
            autoscaling=autoscaling,
            cpus=f"{o.cpus_per_worker:g}",
            memory=o.memory_per_worker,
            gpus=o.gpus_per_worker,
            namespace=o.namespace,
            queue=o.queue,
            secret=o.secret,
            tracking_uri=tracking,
            tolerations=[_toleration(t, problems) for t in o.toleration],
            selector=dict(_selector(s, problems) for s in o.node_selector),
            retries=o.retries,
            ttl=o.ttl,
        )
        if problems:
            raise problems_error("this sweep cannot be submitted to Kubernetes", problems)
        return wish


def _api() -> Kubernetes:
    from pcr_ray.clusters._kubernetes import Kubernetes

    return Kubernetes()


def _parts(handle: str) -> tuple[str, str]:
    backend, _, rest = handle.partition("/")
    namespace, slash, name = rest.partition("/")
    if backend != "kuberay" or not slash or not re.fullmatch(LABEL, namespace) or not re.fullmatch(LABEL, name):
        raise InputError(f"'{handle}' is no handle of a Kubernetes job: kuberay/NAMESPACE/NAME, as submit printed it")
    return namespace, name


def _workers(text: str, queue: str | None, problems: list[str]) -> tuple[tuple[int, int], bool]:
    if not (found := re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text)):
        problems.append(f"--workers {text}: write MIN:MAX, such as 0:8, or a number")
        return (0, 1), True
    low, high = int(found[1]), int(found[2] or found[1])
    if high < 1 or low > high:
        problems.append(f"--workers {text}: needs at least one worker, and MIN not above MAX")
    if queue and low != high:
        problems.append(f"--workers {text}: with --queue give one number, such as {high}: Kueue admits fixed sizes")
    return (low, high), low != high


def _problems_of_names(o: argparse.Namespace) -> list[str]:
    problems = []
    for option, value in (("--image", o.image), ("--storage-claim", o.storage_claim)):
        if not value:
            problems.append(f"{option} is missing")
    if o.image and not re.fullmatch(r"[\w./:@-]+", o.image):
        problems.append(f"--image {o.image}: not a name of an image")
    for option, value in (("--storage-claim", o.storage_claim), ("--secret", o.secret), ("--queue", o.queue)):
        if value and not (re.fullmatch(OBJECT, value) and len(value) <= (63 if option == "--queue" else 253)):
            problems.append(f"{option} {value}: not a name in Kubernetes (small letters, digits, '-' and '.')")
    if not re.fullmatch(LABEL, o.namespace):
        problems.append(f"--namespace {o.namespace}: not a name in Kubernetes (small letters, digits and '-')")
    return problems


def _problems_of_amounts(o: argparse.Namespace) -> list[str]:
    problems = []
    if not 0.1 <= o.cpus_per_worker <= 10_000:
        problems.append(f"--cpus-per-worker {o.cpus_per_worker:g}: needs 0.1 or more")
    if _bytes(o.memory_per_worker) < LEAST_BYTES:
        problems.append(f"--memory-per-worker {o.memory_per_worker}: write a size of 256Mi or more, such as 16Gi")
    for option, value in (("gpus-per-worker", o.gpus_per_worker), ("retries", o.retries), ("ttl", o.ttl)):
        if value < 0:
            problems.append(f"--{option} {value}: needs 0 or more")
    return problems


def _bytes(size: str) -> float:
    """Of a size as Kubernetes writes it; 0 where it is none."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([A-Za-z]*)", size)
    return float(found[1]) * UNITS.get(found[2], 0) if found else 0


def _problems_of_tracking(uri: str | None, secret: str | None) -> list[str]:
    if not uri:
        asks = "--tracking-uri is missing: an MLflow server that the cluster reaches, such as http://mlflow.ml:5000"
        return [] if secret else [f"{asks} (or --secret with the key MLFLOW_TRACKING_URI)"]
    if uri.startswith("sqlite:") and not uri.startswith(f"sqlite:///{SHARED}/"):
        return [f"--tracking-uri {uri}: lost with the pod; name a server, or a file on the claim: "
                f"sqlite:///{SHARED}/mlflow.db"]  # fmt: skip
    if urlsplit(uri).hostname in LOOPBACK:
        return [f"--tracking-uri {uri}: in a pod that is the pod itself; name a Service, such as http://mlflow.ml:5000"]
    return []


def _sweep_arguments(given: list[str], problems: list[str]) -> list[str]:
    """The sweep's own options as they go into the entrypoint; the tracking store goes into the environment."""
    arguments, words = [], iter(given)
    for word in words:
        if word in PLACES:
            problems.append(f"{word} {next(words, '')}: set by the job, which keeps all on the claim, at {SHARED}")
        elif word == "--tracking-uri":
            next(words, None)
        else:
            arguments.append(word)
        if "$" in word:  # Kubernetes itself replaces $(NAME) in commands
            problems.append(f"{word}: '$' cannot be in the options of a Kubernetes job; write it into the sweep file")
    return arguments


def _resources(job: Job, o: argparse.Namespace, problems: list[str]) -> str:
    """What a trial gets, said beforehand: at its start the cluster has no worker to look at."""
    overrides = [b for a, b in zip(job.arguments, job.arguments[1:]) if a == "--set"]
    spec = study.parse(read_yaml(job.text), str(job.file), overrides, job.file.parent, stored=True).spec
    wanted = spec.resources
    gpu = wanted.gpu if wanted.gpu is not None else GPU_SHARE if o.gpus_per_worker else 0
    for kind, one, all_ in (("cpu", wanted.cpu, o.cpus_per_worker), ("gpu", gpu, o.gpus_per_worker)):
        if one > all_:
            problems.append(
                f"resources.{kind}: a trial asks for {one:g}, but a worker has {all_:g}; raise --{kind}s-per-worker"
            )
    return f"{{cpu: {json.dumps(wanted.cpu)}, gpu: {json.dumps(gpu)}}}"


def _files(job: Job, problems: list[str]) -> dict[str, str]:
    files = {"sweep.yaml": job.text}
    for plugin in job.plugins:
        if not plugin.is_file() or not plugin.name.removesuffix(".py").isidentifier() or plugin.suffix != ".py":
            problems.append(f"plugin {plugin}: not a Python file; build packages into the image")
        elif plugin.name in files:
            problems.append(f"plugin {plugin}: another plugin has the name {plugin.name}")
        else:
            try:
                files[plugin.name] = plugin.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                problems.append(f"plugin {plugin}: not UTF-8, as files of a ConfigMap have to be; save it as UTF-8")
    if (size := sum(len(text.encode()) for text in files.values())) > MOST_BYTES:
        problems.append(f"the sweep file and its plugins have {size} bytes, a ConfigMap takes {MOST_BYTES}")
    return files


def _toleration(text: str, problems: list[str]) -> dict[str, str]:
    found = re.fullmatch(rf"(?P<key>{KEY})(=(?P<value>({WORD})?))?:(?P<effect>\w+)", text)
    if not found or found["effect"] not in EFFECTS:
        problems.append(f"--toleration {text}: write KEY=VALUE:EFFECT or KEY:EFFECT; effects: {', '.join(EFFECTS)}")
        return {}
    value: dict[str, Any] = {"operator": "Exists"}
    if found["value"] is not None:
        value = {"operator": "Equal", "value": found["value"]}
    return {"key": found["key"]} | value | {"effect": found["effect"]}


def _selector(text: str, problems: list[str]) -> tuple[str, str]:
    found = re.fullmatch(rf"(?P<key>{KEY})=(?P<value>({WORD})?)", text)
    if not found:
        problems.append(f"--node-selector {text}: write KEY=VALUE, a label of the nodes")
        return "", ""
    return found["key"], found["value"]
