"""Named protocols: what papers and their public code fix, as fields of a trial."""

from __future__ import annotations

from typing import Any

from pcr_ray.errors import InputError
from pcr_ray.text import did_you_mean

PRESETS: dict[str, dict[str, Any]] = {
    # The PCR paper's protocol. These are the defaults, named so that a sweep can say what it means.
    "paper": {
        "batch_size": 10,
        "replay_batch_size": 10,
        "class_order": "shuffled",
        "model": "reduced_resnet18",
        "optimiser": "sgd",
        "lr": 0.1,
        "augment": "paper",
        "views": "both",
        "batchnorm": "auto",
        "head": "auto",
        "normalise": False,
    },
    # The setting of the PCR paper's second accuracy table, taken over from OCM.
    "ocm": {
        # Named in the text of the PCR paper:
        "model": "resnet18",  # 64 filters
        "optimiser": "adam",
        "lr": 0.001,
        "replay_batch_size": 64,
        # Not named there; as in the public code of OCM:
        "batch_size": 10,
        "betas": [0.9, 0.99],
        "weight_decay": 1e-4,
        "normalise": True,
        "class_order": "natural",
        "replay_per_class": 7,
        "augment": "ocm",
    },
}


def preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        raise InputError(f"unknown preset '{name}'{did_you_mean(name, list(PRESETS))}")
    return PRESETS[name]
