"""`submit kuberay`: what it prints, held to Kubernetes' schemas, to KubeRay's rules and to the sweep command itself."""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pcr_ray import sweep as sweep_command
from pcr_ray.clusters import BACKENDS, Job
from pcr_ray.clusters._rayjob import SHARED, dump, object_name
from pcr_ray.errors import InputError
from pcr_ray.study import load as study
from pcr_ray.study.schema import Resources
from tests import rayjob_rules as rules

REPOSITORY = Path(__file__).parent.parent
SERVER = "http://mlflow.ml.svc.cluster.local:5000"
NEEDED = ["--image", "registry.example.com/pcr-ray:1.0", "--storage-claim", "sweeps"]
GPU = ["--gpus-per-worker", "1", "--toleration", "nvidia.com/gpu:NoSchedule"]


def render(
    options: list[str], sweep: list[str] | None = None, *, text: str = "", plugins: list[Path] | None = None
) -> str:
    """What `pcr-ray submit kuberay FILE OPTIONS --print` prints."""
    backend = BACKENDS.get("kuberay")
    parser = argparse.ArgumentParser()
    backend.add_arguments(parser)
    file = REPOSITORY / "sweeps/quickstart.yaml"
    text = text or file.read_text()
    arguments = ["--tracking-uri", SERVER] if sweep is None else sweep
    job = Job(yaml.safe_load(text)["name"], file, text, REPOSITORY, arguments, plugins or [])
    return backend(parser.parse_args(options)).render(job)


def objects(*args: Any, **named: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config_map, ray_job = yaml.safe_load_all(render(*args, **named))
    return config_map, ray_job


@functools.cache  # most combinations of options have most pods in common
def validate(text: str) -> None:
    kubernetes_validate.validate(json.loads(text), kubernetes_validate.latest_version(), strict=True)


def assert_valid(config_map: dict[str, Any], ray_job: dict[str, Any]) -> None:
    validate(json.dumps(config_map))
    for spec in rules.pods(ray_job):
        validate(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}))
    assert rules.problems(ray_job) == []


SIZES = [["--workers", "0:8"], ["--workers", "2:3"], ["--workers", "4"], ["--workers", "4", "--queue", "research"]]
SWITCHES = [
    ["--gpus-per-worker", "2"],
    ["--secret", "mlflow-login"],
    ["--toleration", "dedicated=ml:NoExecute", "--toleration", "spot:PreferNoSchedule"],
    ["--node-selector", "node.kubernetes.io/instance-type=g5.xlarge", "--node-selector", "zone=a"],
    ["--retries", "0", "--ttl", "0"],
    ["--namespace", "studies", "--cpus-per-worker", "7.5", "--memory-per-worker", "512Mi"],
]


@pytest.mark.parametrize("size", SIZES, ids=" ".join)
def test_every_combination_of_options_makes_valid_objects(size: list[str]) -> None:
    for chosen in itertools.product([False, True], repeat=len(SWITCHES)):
        extra = [word for switch, on in zip(SWITCHES, chosen) if on for word in switch]
        assert_valid(*objects([*NEEDED, *size, *extra]))


def _spec(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["rayClusterSpec"]


def _head(job: dict[str, Any]) -> dict[str, Any]:
    return _spec(job)["headGroupSpec"]


def _worker(job: dict[str, Any]) -> dict[str, Any]:
    return _spec(job)["workerGroupSpecs"][0]


def _pod(group: dict[str, Any]) -> dict[str, Any]:
    return group["template"]["spec"]


def _first(group: dict[str, Any]) -> dict[str, Any]:
    return _pod(group)["containers"][0]


def _set(path: Callable[[dict[str, Any]], dict[str, Any]], **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda job: path(job).update(values)


def _entry(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    return lambda job: job["spec"].update(entrypoint=job["spec"]["entrypoint"].replace(old, new))


FIXED, GROWING, QUEUED = ["--workers", "4"], ["--workers", "0:8"], ["--workers", "4", "--queue", "research"]
# Per rule, a manifest that was right before one thing was changed.
BROKEN: dict[str, tuple[list[str], Callable[[dict[str, Any]], None]]] = {
    "name_is_short_and_dns_safe": (FIXED, _set(lambda j: j["metadata"], name="n" * 48)),
    "fields_are_known": (FIXED, _set(lambda j: j["spec"], backofLimit=3)),
    "submission_mode_exists": (FIXED, _set(lambda j: j["spec"], submissionMode="K8sJobmode")),
    "ttl_needs_shutdown": (FIXED, _set(lambda j: j["spec"], shutdownAfterJobFinishes=False)),
    "retries_continue_from_shared_storage": (FIXED, _entry(f"--storage {SHARED}/", "--storage /tmp/")),
    "group_idle_timeout_needs_autoscaler_v2": (
        GROWING,
        lambda j: (_worker(j).update(idleTimeoutSeconds=60), _spec(j)["autoscalerOptions"].update(version="v1")),
    ),
    "autoscaler_v2_needs_pods_that_do_not_restart": (
        GROWING,
        _set(lambda j: _pod(_worker(j)), restartPolicy="Always"),
    ),
    "fixed_clusters_say_min_and_max": (FIXED, _set(_worker, minReplicas=0)),
    "growing_clusters_have_room": (GROWING, _set(_worker, replicas=9)),
    "autoscaler_options_need_autoscaling": (FIXED, _set(_spec, autoscalerOptions={"version": "v2"})),
    "resources_are_said_once": (FIXED, _set(_head, resources={"CPU": "0"})),
    "values_are_text": (FIXED, _set(lambda j: _head(j)["rayStartParams"], **{"object-store-memory": 10**9})),
    "kueue_needs_a_fixed_size": (QUEUED, _set(_spec, enableInTreeAutoscaling=True)),
    "pods_end_gracefully": (FIXED, _set(lambda j: _pod(_worker(j)), terminationGracePeriodSeconds=30)),
    "token_auth_is_on": (FIXED, _set(_spec, rayVersion="2.51.0")),
    "nobody_is_root": (FIXED, lambda j: _pod(_worker(j)).pop("securityContext")),
    "every_container_asks_and_is_limited": (FIXED, lambda j: _first(_head(j))["resources"].pop("limits")),
    "gpus_are_limits_too": (
        FIXED,
        lambda j: _first(_worker(j))["resources"]["requests"].update({"nvidia.com/gpu": "1"}),
    ),
    "head_runs_no_trials": (FIXED, lambda j: _head(j)["rayStartParams"].pop("num-cpus")),
    "secrets_are_references": (
        FIXED,
        lambda j: _first(_head(j))["env"].append({"name": "MLFLOW_TRACKING_PASSWORD", "value": "x"}),
    ),
    "entrypoint_runs_the_sweep_on_this_cluster": (FIXED, _entry("--address auto", "")),
}


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda r: r.__name__)
def test_every_rule_catches_a_manifest_that_breaks_it(rule: Callable[[dict[str, Any]], list[str]]) -> None:
    options, spoil = BROKEN[rule.__name__]
    _, right = objects([*NEEDED, *options])
    broken = copy.deepcopy(right)
    spoil(broken)
    assert rule(right) == [] and rule(broken) != []


EXAMPLES = {
    "quickstart-autoscaling.yaml": [*NEEDED, "--namespace", "ml", "--workers", "0:8", *GPU],
    "quickstart-kueue.yaml": [*NEEDED, "--namespace", "ml", "--workers", "4", "--queue", "research", *GPU],
    "quickstart-cpu.yaml": [*NEEDED, "--namespace", "ml", "--workers", "2", "--secret", "mlflow-login"],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_what_is_printed_today(name: str) -> None:
    file = REPOSITORY / "deploy/kuberay" / name
    text, today = file.read_text(), render(EXAMPLES[name])
    file.write_text(today)
    assert text == today, f"{file.name} was out of date and is written anew: look at the change and commit it"
    assert_valid(*yaml.safe_load_all(text))


def test_the_same_options_print_the_same_bytes() -> None:
    options = [*NEEDED, *GPU, "--node-selector", "b=1", "--node-selector", "a=2"]
    assert render(options) == render(options)


def test_the_entrypoint_means_the_same_after_both_shells(tmp_path: Path) -> None:
    """KubeRay puts it into a shell line of the submitter; Ray joins the words again for a shell on the head."""
    hard = ["--set", "grid.seed=[0, 1]", "--set", 'description=it\'s "so"; a * & {b,c} \\ #', "--rerun", "failed"]
    _, job = objects(NEEDED, ["--tracking-uri", SERVER, *hard])
    entrypoint = job["spec"]["entrypoint"]

    def words(shell: str, line: str) -> list[str]:
        answer = subprocess.run([shell, "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, cwd=tmp_path)
        return answer.stdout.split("\0")[:-1]

    once = words("bash", entrypoint)
    assert words("sh", shlex.join(once)) == once == shlex.split(entrypoint)
    assert hard[3] in once


def test_the_sweep_command_takes_the_entrypoint_and_finds_the_same_trials(tmp_path: Path) -> None:
    config_map, job = objects([*NEEDED, *GPU], ["--tracking-uri", SERVER, "--set", "grid.seed=[0, 1]"])
    options = sweep_command.parser().parse_args(shlex.split(job["spec"]["entrypoint"])[3:])
    assert options.address == "auto" and options.tracking_uri is None and str(options.out).startswith(SHARED)
    file = tmp_path / Path(options.file).name
    file.write_text(config_map["data"][file.name])
    there = study.load(file, options.set)
    here = study.load(REPOSITORY / "sweeps/quickstart.yaml", ["grid.seed=[0, 1]"])
    assert there.trials == here.trials
    # No worker is there when the driver starts, so it cannot look for GPUs: it is told.
    assert there.spec.resources == Resources(cpu=1, gpu=0.25)


def test_only_the_driver_sees_the_secret() -> None:
    _, job = objects([*NEEDED, "--secret", "mlflow-login"])
    have = [c["name"] for c in rules.containers(job) if "envFrom" in c]
    assert have == ["ray-head"]
    assert _first(_head(job))["envFrom"] == [{"secretRef": {"name": "mlflow-login"}}]


def test_plugins_are_files_of_the_config_map_that_every_worker_can_import(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("ANSWER = 42\n")
    config_map, job = objects([*NEEDED, "--workers", "1"], plugins=[tmp_path / "mine.py"])
    assert config_map["data"]["mine.py"] == "ANSWER = 42\n"
    for group in rules.groups(job):
        container = group["template"]["spec"]["containers"][0]
        (path,) = [e["value"] for e in container["env"] if e["name"] == "PYTHONPATH"]
        assert path in [m["mountPath"] for m in container["volumeMounts"]]
    assert_valid(config_map, job)


def test_a_file_with_any_text_comes_back_from_the_config_map() -> None:
    text = (REPOSITORY / "sweeps/quickstart.yaml").read_text() + "# tabs\there, trailing   \n# ünïcode: ≤ 'x' \"y\"\n\n"
    assert objects(NEEDED, text=text)[0]["data"]["sweep.yaml"] == text


# What a reader of YAML 1.1 (https://yaml.org/type) or 1.2 (its core schema) takes for something else than text.
NOT_TEXT = re.compile(
    r"y|n|yes|no|on|off|true|false|null|~||[-+]?\.inf|\.nan"
    r"|[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?[0-9][0-9_]*|[-+]?0x[0-9a-f_]+|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"
    r"|[-+]?([0-9][0-9_]*)?\.[0-9_]*(e[-+][0-9]+)?|0o[0-7]+|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)(e[-+]?[0-9]+)?",
    re.IGNORECASE,
)


TEMPTING = "y n Y N yes off 1e3 12e5 0o7 1.5e3 1E5 08 1_0e3 0x1F 0X1F 0b1 0B1 -1e3 +.5e3 .5e3 1. 1:30 null ~ .inf"


def plain_texts(printed: str) -> list[str]:
    """The texts, keys among them, that stand in YAML without quotes."""
    left, found = list(yaml.compose_all(printed, yaml.SafeLoader)), []
    while left:
        node = left.pop()
        if isinstance(node, yaml.ScalarNode):
            found += [node.value] if node.style is None and node.tag.endswith(":str") else []
        else:
            left += [part for item in node.value for part in (item if isinstance(item, tuple) else [item])]
    return found


def test_no_text_is_read_as_a_number_or_truth_value_by_kubectl() -> None:
    """It reads YAML by other rules than PyYAML."""
    documents = [{word: [word]} for word in TEMPTING.split()]
    printed = dump(documents)
    assert list(yaml.safe_load_all(printed)) == documents
    odd = "--namespace 1e3 --secret 12e5 --queue 0o7 --node-selector gpu=y --node-selector n=08"
    named = (REPOSITORY / "sweeps/quickstart.yaml").read_text().replace("name: quickstart", "name: 'y'")
    printed += render([*NEEDED, *odd.split(), "--workers", "1", "--toleration", "0x1F=N:NoSchedule"], text=named)
    texts = plain_texts(printed)
    assert "ConfigMap" in texts and "0.0.0.0" in texts
    assert [text for text in texts if NOT_TEXT.fullmatch(text)] == []


@pytest.mark.parametrize("sweep", ["quickstart", "9", "A" * 100, "Table.1_final", "---".join("ab"), "x" * 36 + ".-_y"])
def test_names_are_dns_safe(sweep: str) -> None:
    assert rules.name_is_short_and_dns_safe({"metadata": {"name": object_name(sweep)}}) == []


def test_names_that_look_alike_stay_apart() -> None:
    sweeps = ["table1", "Table1", "table-1", "table_1", "table.1", "t" * 60, "t" * 61]
    assert len({object_name(s) for s in sweeps}) == len(sweeps)
    assert object_name("table1") == object_name("table1")


REFUSED = {
    "--tracking-uri sqlite:///mlflow.db": "lost with the pod",
    "--tracking-uri http://localhost:5000": "the pod itself",
    "--storage /somewhere": "keeps all on the claim",
    "--set description=$(HOSTNAME)": "'$' cannot be",
}


@pytest.mark.parametrize("words", REFUSED)
def test_sweep_options_that_cannot_work_in_a_pod_are_refused(words: str) -> None:
    option, value = words.split(" ")
    tracking = [] if option == "--tracking-uri" else ["--tracking-uri", SERVER]
    with pytest.raises(InputError, match=REFUSED[words].replace("$", r"\$")):
        render(NEEDED, [*tracking, option, value])


def test_a_store_on_the_claim_or_in_a_secret_is_fine() -> None:
    assert_valid(*objects(NEEDED, ["--tracking-uri", f"sqlite:///{SHARED}/mlflow.db"]))
    assert_valid(*objects([*NEEDED, "--secret", "mlflow-login"], []))


def test_all_problems_come_in_one_message() -> None:
    wrong = "--workers 3:2 --queue Q --namespace A.b --secret x_y --toleration a=b --node-selector a --retries -1"
    more = "--ttl -1 --gpus-per-worker -1 --cpus-per-worker 0 --memory-per-worker 16GB"
    with pytest.raises(InputError) as refused:
        render([*wrong.split(), *more.split()], [])
    message = str(refused.value)
    options = [w for w in f"{wrong} {more}".split() if w.startswith("--")]
    assert all(o in message for o in [*options, "--image", "--storage-claim"])


@pytest.mark.parametrize("size", ["16", "16k", "255Mi", "0Gi", "0.1G", "16GB", "Gi"])
def test_a_size_without_its_unit_is_refused(size: str) -> None:
    with pytest.raises(InputError, match=rf"--memory-per-worker {size}: .* such as 16Gi"):
        render([*NEEDED, "--memory-per-worker", size])


@pytest.mark.parametrize("size", ["256Mi", "0.5Gi", "16G", "1Ti", "17179869184"])
def test_every_way_to_write_a_size_is_taken(size: str) -> None:
    _, job = objects([*NEEDED, "--memory-per-worker", size])
    assert _first(_worker(job))["resources"]["limits"]["memory"] == size


def test_a_queue_needs_a_number_of_workers() -> None:
    with pytest.raises(InputError, match="with --queue give one number, such as 8"):
        render([*NEEDED, "--workers", "0:8", "--queue", "research"])


def test_a_trial_that_fits_no_worker_is_refused() -> None:
    with pytest.raises(InputError, match=r"resources.gpu: a trial asks for 0.5, but a worker has 0"):
        render(NEEDED, ["--tracking-uri", SERVER, "--set", "resources={cpu: 2, gpu: 0.5}"])
    with pytest.raises(InputError, match=r"resources.cpu: a trial asks for 8, but a worker has 4"):
        render(NEEDED, ["--tracking-uri", SERVER, "--set", "resources={cpu: 8}"])


def test_more_than_a_config_map_holds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text("#" * 1_000_001)
    with pytest.raises(InputError, match="a ConfigMap takes"):
        render(NEEDED, plugins=[tmp_path / "big.py"])
    with pytest.raises(InputError, match="build packages into the image"):
        render(NEEDED, plugins=[tmp_path])


def test_a_plugin_that_no_config_map_can_hold_is_one_problem_among_others(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("# -*- coding: latin-1 -*-\nNAME = 'é'\n", encoding="latin-1")
    with pytest.raises(InputError, match=r"(?s)--retries -1.*old.py: not UTF-8"):
        render([*NEEDED, "--retries", "-1"], plugins=[tmp_path / "old.py"])
