"""One trial's configuration: what is filled in, what is refused and how, and what a trial's identity means."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pcr_ray
from pcr_ray.config import FIELDS, GAMMA, TrialConfig
from pcr_ray.datasets import DATASETS
from pcr_ray.errors import InputError
from pcr_ray.identity import identity
from pcr_ray.methods import METHODS
from pcr_ray.study.resolve import ConfigProblems, resolve, resolve_or_exit

REPOSITORY = Path(pcr_ray.__file__).parent.parent


def problems(raw, **options):
    """Field -> message of everything that `resolve` refuses."""
    with pytest.raises(ConfigProblems) as caught:
        resolve(raw, **options)
    found = {p.field: p.message for p in caught.value.problems}
    assert len(found) == len(caught.value.problems), "a field is named twice"
    return found


# What is filled in


@pytest.mark.parametrize("dataset, tasks", [("digits", 5), ("cifar10", 5), ("cifar100", 10), ("mini_imagenet", 10)])
def test_the_number_of_tasks_is_the_datasets_usual_one(dataset, tasks):
    assert resolve({"dataset": dataset}).tasks == tasks
    assert resolve({"dataset": dataset, "tasks": 2}).tasks == 2


@pytest.mark.parametrize("name", METHODS.names())
def test_head_batchnorm_and_parameters_are_the_methods_own(name):
    method, config = METHODS.get(name), resolve({"method": name})
    assert config.head == method.head
    assert config.head in method.heads
    assert config.batchnorm == (method.batchnorm if method.uses_memory else "joint")
    assert config.params == method.Params().model_dump()
    assert config.gamma == (GAMMA if config.head == "cosine" else None)


def test_nothing_is_left_open_in_a_resolved_trial():
    config = resolve({})
    assert "auto" not in config.model_dump().values()
    assert resolve(config.model_dump()) == config


# What is refused


def test_every_problem_is_reported_at_once_with_its_field():
    found = problems(
        {"methd": "pcr", "dataset": "cifar", "lr": -1, "batch_size": 0, "optimiser": "sgdd", "head": "linear",
         "replay_batch_size": 0, "params": {"alpha": 1}, "betas": [0.9, 2.0]}
    )  # fmt: skip
    assert found.keys() == {"methd", "dataset", "lr", "batch_size", "optimiser", "head", "replay_batch_size",
                            "params.alpha", "betas.1"}  # fmt: skip
    assert "did you mean 'method'" in found["methd"]
    assert "'sgd' or 'adam'" in found["optimiser"]


@pytest.mark.parametrize(
    "raw, field, near",
    [
        ({"bufer": 1}, "bufer", "buffer"),
        ({"method": "pcrr"}, "method", "pcr"),
        ({"dataset": "cifar1O"}, "dataset", "cifar10"),
        ({"learning_rate": 1}, "learning_rate", "here it is 'lr'"),
        ({"zzz": 1}, "zzz", "known: "),
    ],
)
def test_an_unknown_name_comes_with_the_near_one_or_with_what_there_is(raw, field, near):
    found = problems(raw)
    assert found.keys() == {field}
    assert near in found[field]


@pytest.mark.parametrize("key", [1, None, True, 1.5])
def test_a_key_that_is_no_text_is_an_unknown_field(key):
    assert "unknown field" in problems({key: 1})[str(key)]


def test_all_problems_become_one_input_error():
    with pytest.raises(InputError) as caught:
        resolve_or_exit({"lr": 0, "seed": -1}, "this trial cannot be run")
    assert str(caught.value).startswith("this trial cannot be run: 2 problems\n  - lr: ")
    assert "\n  - seed: " in str(caught.value)


@pytest.mark.parametrize("text", ["1e-3", "1e-5", "1E5", "2.5e7", "1e3", "25e-8"])
def test_numbers_that_yaml_reads_as_text_come_with_the_form_it_reads_as_a_number(text):
    assert yaml.safe_load(text) == text  # the trap
    message = problems({"lr": yaml.safe_load(text)})["lr"]
    hint = message.partition("write ")[2].rstrip(")")
    assert yaml.safe_load(hint) == float(text)


@pytest.mark.parametrize(
    "field, value",
    [
        *(("buffer", v) for v in ("10", True, 10.0, 10.5, None, [10], 10**30)),
        *(("lr", v) for v in ("0.1", True, None, 0, -0.1, float("nan"), float("inf"))),
        *(("normalise", v) for v in (1, 0, "true", "yes", None)),
        *(("seed", v) for v in (-1, 2**63, 1.0)),
        *(("fraction", v) for v in (0, 1.01, float("nan"))),
        *(("tasks", v) for v in (0, -1, 11, 2.0)),
        *(("betas", v) for v in ([0.9], [0.9, 0.9, 0.9], 0.9, "0.9")),
        *(("params", v) for v in (None, [], "a=1", 3)),
        *(("dataset", v) for v in (None, 5, ["digits"])),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused(field, value):
    assert problems({field: value}).keys() == {field}


def test_a_command_lines_text_is_read_as_numbers_only_when_asked():
    text = {"lr": "1e-3", "buffer": "10", "normalise": "true", "betas": ["0.9", "0.99"], "tasks": "2", "fraction": "1"}
    config = resolve({**text, "optimiser": "adam"}, strict=False)
    assert config == resolve({"lr": 0.001, "buffer": 10, "normalise": True, "betas": [0.9, 0.99], "tasks": 2,
                              "fraction": 1.0, "optimiser": "adam"})  # fmt: skip
    assert problems(text).keys() == {"lr", "buffer", "normalise", "betas.0", "betas.1", "tasks", "fraction"}
    assert problems({"buffer": "10.5", "lr": "fast", "seed": ""}, strict=False).keys() == {"buffer", "lr", "seed"}


@pytest.mark.parametrize("name", METHODS.names())
def test_parameters_of_another_method_are_refused(name):
    raw = {"method": name, "params": {"no_such_parameter": 1}}
    assert problems(raw).keys() == {"params.no_such_parameter"}
    assert problems({"method": name, "params.no_such_parameter": 1}) == problems(raw)


@pytest.mark.parametrize("name", [m.name for m in METHODS if m.uses_memory])
def test_a_replay_method_needs_something_to_replay(name):
    for field in ("buffer", "replay_batch_size"):
        assert problems({"method": name, field: 0}).keys() == {field}


def test_a_head_the_method_cannot_use_is_refused():
    for method in METHODS:
        for head in {"cosine", "linear"} - set(method.heads):
            assert problems({"method": method.name, "head": head}).keys() == {"head"}
        for head in method.heads:
            assert resolve({"method": method.name, "head": head}).head == method.inert.get("head", head)


def test_an_image_folder_needs_its_three_fields_and_others_have_none_of_them():
    assert problems({"dataset": "folder"}).keys() == {"folder", "image_size", "tasks"}
    folder = {"dataset": "folder", "folder": "x", "image_size": 32, "tasks": 2}
    assert resolve(folder).tasks == 2
    for name in DATASETS.names():
        if name != "folder":
            assert problems({**folder, "dataset": name}).keys() == {"folder", "image_size"}


# Identity


def test_fields_that_cannot_matter_do_not_change_the_identity():
    same = [
        [{"method": "finetune", **extra} for extra in ({}, {"buffer": 0}, {"buffer": 7, "replay_batch_size": 3},
                                                       {"replay_current": False}, {"batchnorm": "separate"})],
        [{"method": "er", "head": "linear", **extra} for extra in ({}, {"gamma": 5.0}, {"gamma": None})],
        [{"method": "ss_il", **extra} for extra in ({}, {"replay_current": False})],
        [{"method": "ocm", **extra} for extra in ({}, {"views": "augmented"}, {"views": "original"})],
        [{"method": "scr", **extra} for extra in ({}, {"head": "cosine", "gamma": 5.0}, {"proxy_gradients": True})],
        [{"augment": "none"}, {"augment": "none", "views": "augmented"}, {"views": "original"},
         {"views": "original", "augment": "ocm"}],
        [{"optimiser": "sgd", **extra} for extra in ({}, {"betas": [0.5, 0.5]})],
        [{"optimiser": "adam", **extra} for extra in ({}, {"momentum": 0.5})],
    ]  # fmt: skip
    identities = [{identity(resolve(raw)) for raw in group} for group in same]
    assert [len(group) for group in identities] == [1] * len(same)
    assert len(set.union(*identities)) == len(same)


def test_spelling_out_a_default_is_the_same_trial():
    config = resolve({"method": "er"})
    explicit = {k: v for k, v in config.model_dump().items() if v is not None}
    assert identity(resolve(explicit)) == identity(config)
    assert identity(resolve({"method": "er", "lr": 1})) == identity(resolve({"method": "er", "lr": 1.0}))


def test_every_field_makes_another_trial():
    base = {"method": "er", "optimiser": "adam"}
    changes = {"dataset": "cifar10", "tasks": 2, "stop_after": 2, "fraction": 0.5, "class_order": "natural",
               "method": "pcr", "buffer": 10, "batch_size": 5, "replay_batch_size": 5, "replay_current": False,
               "replay_per_class": 7, "model": "resnet18",
               "head": "linear", "gamma": 5.0, "optimiser": "sgd", "lr": 0.2, "betas": [0.8, 0.9],
               "weight_decay": 0.1, "augment": "none", "views": "augmented", "batchnorm": "joint",
               "normalise": True, "pixels": "signed", "softmax": "all", "pool": 1, "precision": "bf16",
               "proxy_gradients": True, "seed": 1}  # fmt: skip
    identities = {identity(resolve({**base, field: value})) for field, value in changes.items()}
    identities.add(identity(resolve({**base, "optimiser": "sgd", "momentum": 0.5})))
    folder = {**base, "dataset": "folder", "folder": "a", "image_size": 32, "tasks": 2}
    identities |= {identity(resolve({**folder, **change})) for change in ({}, {"folder": "b"}, {"image_size": 64})}
    assert changes.keys() | {"momentum", "folder", "image_size", "params", "preset"} == set(FIELDS)
    assert identity(resolve(base)) not in identities
    assert len(identities) == len(changes) + 1 + 3


def test_parameters_of_the_method_make_another_trial():
    config = resolve({})
    other = TrialConfig.model_validate({**config.model_dump(), "params": {"alpha": 0.5}})
    assert identity(other) != identity(config)
    assert other.flat()["params.alpha"] == 0.5


def test_the_identity_is_the_same_in_every_process_and_order_of_fields():
    raw = {"method": "er", "seed": 3, "lr": 0.05, "betas": [0.9, 0.99]}
    code = (
        "import json, sys; from pcr_ray.identity import identity; from pcr_ray.study.resolve import resolve;"
        "print(identity(resolve(json.loads(sys.argv[1]))))"
    )
    backwards = json.dumps(dict(reversed(raw.items())))
    run = subprocess.run(
        [sys.executable, "-c", code, backwards], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == identity(resolve(raw))
