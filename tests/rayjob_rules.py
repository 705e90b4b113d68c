"""What KubeRay, Kueue and a careful administrator ask of a RayJob beyond its schema: one function per rule.

Each takes a RayJob and returns what is wrong, in words; an empty list is a pass. `BROKEN` in test_kuberay.py has a
manifest for every rule that only this rule is meant to catch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

Manifest = dict[str, Any]

# The fields of ray.io/v1 that are in use here or easily mistaken for one; a misspelt one is dropped without a word.
FIELDS = """
job: activeDeadlineSeconds backoffLimit clusterSelector deletionStrategy entrypoint entrypointNumCpus
  entrypointNumGpus entrypointResources jobId managedBy metadata preRunningDeadlineSeconds rayClusterSpec
  runtimeEnvYAML shutdownAfterJobFinishes submissionMode submitterConfig submitterPodTemplate suspend
  ttlSecondsAfterFinished
cluster: authOptions autoscalerOptions enableInTreeAutoscaling gcsFaultToleranceOptions headGroupSpec
  headServiceAnnotations managedBy rayVersion suspend upgradeStrategy workerGroupSpecs
autoscaler: env envFrom idleTimeoutSeconds image imagePullPolicy resources securityContext upscalingMode version
  volumeMounts
head: enableIngress headService labels rayStartParams resources serviceType template
worker: groupName idleTimeoutSeconds labels maxReplicas minReplicas numOfHosts rayStartParams replicas resources
  scaleStrategy suspend template
"""
KNOWN: dict[str, set[str]] = {k: set(v.split()) for k, v in yaml.safe_load(FIELDS).items()}


def cluster(job: Manifest) -> Manifest:
    return job["spec"]["rayClusterSpec"]


def groups(job: Manifest) -> list[Manifest]:
    return [cluster(job)["headGroupSpec"], *cluster(job)["workerGroupSpecs"]]


def ray_pods(job: Manifest) -> list[Manifest]:
    return [g["template"]["spec"] for g in groups(job)]


def pods(job: Manifest) -> list[Manifest]:
    return [*ray_pods(job), job["spec"]["submitterPodTemplate"]["spec"]]


def containers(job: Manifest) -> Iterator[Manifest]:
    for pod in pods(job):
        yield from pod["containers"]


def autoscaling(job: Manifest) -> bool:
    return bool(cluster(job).get("enableInTreeAutoscaling"))


def name_is_short_and_dns_safe(job: Manifest) -> list[str]:
    name = job["metadata"]["name"]
    fits = len(name) <= 47 and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    return [] if fits else [f"name {name}"]


def fields_are_known(job: Manifest) -> list[str]:
    spec = cluster(job)
    parts = [("job", job["spec"]), ("cluster", spec), ("autoscaler", spec.get("autoscalerOptions", {}))]
    parts += [("head", spec["headGroupSpec"]), *(("worker", g) for g in spec["workerGroupSpecs"])]
    return [f"unknown field {key}" for kind, part in parts for key in part if key not in KNOWN[kind]]


def submission_mode_exists(job: Manifest) -> list[str]:
    mode = job["spec"].get("submissionMode", "K8sJobMode")
    return [] if mode in ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode") else [f"submissionMode {mode}"]


def ttl_needs_shutdown(job: Manifest) -> list[str]:
    spec = job["spec"]
    bad = spec.get("ttlSecondsAfterFinished", 0) and not spec.get("shutdownAfterJobFinishes")
    return ["ttlSecondsAfterFinished without shutdownAfterJobFinishes"] if bad else []


def retries_continue_from_shared_storage(job: Manifest) -> list[str]:
    """Each retry is a new cluster: what the sweep writes has to lie on a claim that all pods mount alike."""
    if not job["spec"].get("backoffLimit"):
        return []
    mounts = []
    for pod in ray_pods(job):
        claims = {v["name"] for v in pod.get("volumes", []) if "persistentVolumeClaim" in v}
        found = pod["containers"][0].get("volumeMounts", [])
        mounts.append({(m["mountPath"]) for m in found if m["name"] in claims})
    shared = set.intersection(*mounts)
    words = shlex.split(job["spec"]["entrypoint"])
    places = {option: words[words.index(option) + 1] for option in ("--storage", "--data-root", "--out")}
    return [f"{o} {p} is on no claim" for o, p in places.items() if not any(p.startswith(f"{m}/") for m in shared)]


def group_idle_timeout_needs_autoscaler_v2(job: Manifest) -> list[str]:
    used = any("idleTimeoutSeconds" in g for g in cluster(job)["workerGroupSpecs"])
    v2 = cluster(job).get("autoscalerOptions", {}).get("version") == "v2"
    return ["a group's idleTimeoutSeconds without autoscaler v2"] if used and not v2 else []


def autoscaler_v2_needs_pods_that_do_not_restart(job: Manifest) -> list[str]:
    if not autoscaling(job) or cluster(job).get("autoscalerOptions", {}).get("version") != "v2":
        return []
    return [f"restartPolicy {p['restartPolicy']}" for p in ray_pods(job) if p.get("restartPolicy", "Never") != "Never"]


def fixed_clusters_say_min_and_max(job: Manifest) -> list[str]:
    if autoscaling(job):
        return []
    sizes = [(g.get("replicas"), g.get("minReplicas"), g.get("maxReplicas")) for g in cluster(job)["workerGroupSpecs"]]
    return [f"replicas, min and max are {s}" for s in sizes if len(set(s)) > 1]


def growing_clusters_have_room(job: Manifest) -> list[str]:
    if not autoscaling(job):
        return []
    sizes = [(g["minReplicas"], g["replicas"], g["maxReplicas"]) for g in cluster(job)["workerGroupSpecs"]]
    return [f"min, replicas and max are {s}" for s in sizes if not s[0] <= s[1] <= s[2] or s[0] == s[2]]


def autoscaler_options_need_autoscaling(job: Manifest) -> list[str]:
    extra = "autoscalerOptions" in cluster(job) and not autoscaling(job)
    return ["autoscalerOptions without enableInTreeAutoscaling"] if extra else []


def resources_are_said_once(job: Manifest) -> list[str]:
    said = ("num-cpus", "num-gpus", "memory", "resources")
    both = [g for g in groups(job) if g.get("resources") and any(k in g["rayStartParams"] for k in said)]
    return ["resources both in rayStartParams and in the group"] if both else []


def values_are_text(job: Manifest) -> list[str]:
    """Numbers in rayStartParams, env or quantities are refused, or read otherwise than meant."""
    values = [v for g in groups(job) for v in g["rayStartParams"].values()]
    values += [e["value"] for c in containers(job) for e in c.get("env", []) if "value" in e]
    values += [v for c in containers(job) for part in c.get("resources", {}).values() for v in part.values()]
    return [f"{v!r} is not text" for v in values if not isinstance(v, str)]


def kueue_needs_a_fixed_size(job: Manifest) -> list[str]:
    if "kueue.x-k8s.io/queue-name" not in job["metadata"].get("labels", {}):
        return []
    problems = ["in-tree autoscaling in a queue"] if autoscaling(job) else []
    return problems + ([] if job["spec"].get("shutdownAfterJobFinishes") else ["a queued job has to shut down"])


def pods_end_gracefully(job: Manifest) -> list[str]:
    times = [p.get("terminationGracePeriodSeconds", 30) for p in ray_pods(job)]
    return [f"terminationGracePeriodSeconds {t}" for t in times if t <= 30]


def token_auth_is_on(job: Manifest) -> list[str]:
    version = tuple(int(n) for n in re.findall(r"\d+", str(cluster(job).get("rayVersion", "0")))[:2])
    mode = cluster(job).get("authOptions", {}).get("mode")
    return [] if mode == "token" and version >= (2, 52) else [f"authOptions {mode}, Ray {version}"]


def nobody_is_root(job: Manifest) -> list[str]:
    bad = [p for p in pods(job) if not p.get("securityContext", {}).get("runAsNonRoot")]
    bad += [p for p in pods(job) if not p.get("securityContext", {}).get("runAsUser")]
    contexts = [c.get("securityContext", {}) for c in containers(job)]
    if "autoscalerOptions" in cluster(job):
        contexts.append(cluster(job)["autoscalerOptions"].get("securityContext", {}))
    open_ = [c for c in contexts if c.get("allowPrivilegeEscalation") is not False]
    dropped = [c for c in contexts if c.get("capabilities", {}).get("drop") != ["ALL"]]
    return ["a pod may run as root"] * bool(bad) + ["a container may gain rights"] * bool(open_ or dropped)


def every_container_asks_and_is_limited(job: Manifest) -> list[str]:
    resources = [c.get("resources", {}) for c in containers(job)]
    if "autoscalerOptions" in cluster(job):
        resources.append(cluster(job)["autoscalerOptions"].get("resources", {}))
    whole = [r for r in resources if all({"cpu", "memory"} <= r.get(k, {}).keys() for k in ("requests", "limits"))]
    return [] if len(whole) == len(resources) else ["a container without requests and limits"]


def gpus_are_limits_too(job: Manifest) -> list[str]:
    parts = [c["resources"] for c in containers(job) if "resources" in c]
    key = "nvidia.com/gpu"
    return ["GPU request and limit differ" for r in parts if r["requests"].get(key) != r["limits"].get(key)]


def head_runs_no_trials(job: Manifest) -> list[str]:
    return [] if cluster(job)["headGroupSpec"]["rayStartParams"].get("num-cpus") == "0" else ["the head offers CPUs"]


def secrets_are_references(job: Manifest) -> list[str]:
    env = [e for c in containers(job) for e in c.get("env", [])]
    named = [e["name"] for e in env if "value" in e and re.search("PASS|TOKEN|SECRET|CREDENTIAL", e["name"])]
    texts = [job["spec"]["entrypoint"], *(e.get("value", "") for e in env)]
    return [f"{n} has a value" for n in named] + [f"credentials in {t}" for t in texts if re.search("://[^/ ]*@", t)]


def entrypoint_runs_the_sweep_on_this_cluster(job: Manifest) -> list[str]:
    words = shlex.split(job["spec"]["entrypoint"])
    runs = words[:3] == ["python", "-m", "pcr_ray.sweep"]
    here = "--address" in words and words[words.index("--address") + 1] == "auto"
    return [] if runs and here else [job["spec"]["entrypoint"]]


RULES = [
    name_is_short_and_dns_safe,
    fields_are_known,
    submission_mode_exists,
    ttl_needs_shutdown,
    retries_continue_from_shared_storage,
    group_idle_timeout_needs_autoscaler_v2,
    autoscaler_v2_needs_pods_that_do_not_restart,
    fixed_clusters_say_min_and_max,
    growing_clusters_have_room,
    autoscaler_options_need_autoscaling,
    resources_are_said_once,
    values_are_text,
    kueue_needs_a_fixed_size,
    pods_end_gracefully,
    token_auth_is_on,
    nobody_is_root,
    every_container_asks_and_is_limited,
    gpus_are_limits_too,
    head_runs_no_trials,
    secrets_are_references,
    entrypoint_runs_the_sweep_on_this_cluster,
]


def problems(job: Manifest) -> list[str]:
    return [f"{rule.__name__}: {text}" for rule in RULES for text in rule(job)]
