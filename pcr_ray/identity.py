"""A trial's identity: the same trial has the same one in every sweep, everywhere and in later versions."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.methods import METHODS

FORM = 1  # of the canonical form below; recorded with every trial. A second form would hash its number too.
TRAINABLE = "trainables.online:OnlineTrainable"


def canonical(config: TrialConfig, trainable: str = TRAINABLE) -> dict[str, Any]:
    """Every field and parameter, but for labels and for those added later that say "as before there was this choice".

    Their values of that meaning are in `TrialConfig.added` and in the `added` of a method's parameters: not the
    defaults, which may change. So a new field leaves finished trials what they are.
    """
    fields = config.model_dump(exclude=set(TrialConfig.labels))
    fields["params"] = _without(fields["params"], METHODS.get(config.method).Params.added)
    fields = _without(fields, TrialConfig.added)
    return fields if trainable == TRAINABLE else fields | {"trainable": trainable}


def identity(config: TrialConfig, trainable: str = TRAINABLE) -> str:
    text = json.dumps(canonical(config, trainable), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without(values: dict[str, Any], neutral: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in neutral or v != neutral[k]}
