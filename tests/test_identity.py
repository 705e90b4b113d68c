"""Identities outlive versions: pinned values, fields added later, trainables of one's own."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from pcr_ray.config import TrialConfig
from pcr_ray.identity import identity
from pcr_ray.methods import METHODS
from pcr_ray.study.resolve import resolve

# Worked out by the first version. A change here orphans every finished trial of its kind: there is no reason for one.
PINNED: list[tuple[dict[str, Any], str]] = [
    ({}, "b5ac9b0c30f50f29"),
    ({"method": "er", "dataset": "cifar10", "seed": 3}, "bb54df5743020fb1"),
    ({"method": "mir", "dataset": "cifar100", "buffer": 5000, "params.move_statistics": False}, "166f7e1ebf82b67c"),
    ({"method": "gmed", "dataset": "mini_imagenet"}, "7f01c60877d26cda"),
    ({"method": "ocm", "model": "resnet18", "optimiser": "adam", "lr": 0.001}, "986f169d50d2949c"),
    ({"method": "iid", "dataset": "cifar10"}, "2481ec98aa84fcb9"),
    ({"method": "scr", "batchnorm": "joint", "params": {"temperature": 0.1}}, "b0345fd59cad8373"),
    ({"method": "er_wa", "buffer": 100, "params.clamp": False}, "988026840cfb16a8"),
    ({"method": "ocm", "dataset": "cifar10", "params.halve": False}, "2a462498caee393b"),
    ({"method": "er", "dataset": "folder", "folder": "x", "image_size": 32, "tasks": 2}, "1300549828b74f28"),
]


@pytest.mark.parametrize(("raw", "pinned"), PINNED, ids=lambda v: v if isinstance(v, str) else "")
def test_identities_are_those_of_the_first_version(raw: dict[str, Any], pinned: str) -> None:
    assert identity(resolve(raw)) == pinned


def test_an_identity_is_the_hash_of_the_whole_configuration() -> None:
    config = resolve({"method": "ss_il", "seed": 7})
    everything = config.model_dump(exclude={"preset"})
    kept = {k: v for k, v in everything.items() if v != TrialConfig.added.get(k, "nothing equals this")}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    assert identity(config) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_field_added_later_counts_only_where_it_says_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lr` plays a field added after trials with 0.1 were run."""
    monkeypatch.setattr(TrialConfig, "added", {"lr": 0.1})
    before, other = identity(resolve({})), identity(resolve({"lr": 0.2}))
    monkeypatch.setattr(TrialConfig, "added", {})
    assert before != identity(resolve({})) and other == identity(resolve({"lr": 0.2}))


def test_a_parameter_added_later_counts_only_where_it_says_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    params = METHODS.get("derpp").Params
    values = {a: resolve({"method": "derpp", "params.alpha": a}) for a in (0.1, 0.3)}
    with_it = {a: identity(c) for a, c in values.items()}
    monkeypatch.setattr(params, "added", {"alpha": 0.3})  # what trials did before there was the parameter
    assert identity(values[0.1]) == with_it[0.1], "the default counts: it is not what trials did before"
    assert identity(values[0.3]) != with_it[0.3]


def test_a_trainable_of_ones_own_makes_another_trial() -> None:
    config = resolve({})
    assert identity(config, "mine:Trainable") != identity(config) != identity(config, "mine:Other")
