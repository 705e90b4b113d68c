"""Names of metrics in MLflow, whose UI makes one group of charts of all that stands before a slash.

The main metrics keep their bare names, so that runs of all versions have the same columns. The many others are moved
out of their way: `ncm_final_accuracy` is `ncm/final_accuracy` there, `accuracy_task_3` is `task/03`.
"""

from __future__ import annotations

import re
from functools import cache

from pcr_ray.metrics import CLASSIFIERS

TASK = "accuracy_task_"
GROUPS = {c.prefix: f"{c.name}/" for c in CLASSIFIERS.values() if c.prefix}


def shown(name: str) -> str:
    """As it is written to MLflow; tasks have two digits, because the UI sorts by letters."""
    for prefix, group in GROUPS.items():
        if name.startswith(prefix):
            return group + shown(name.removeprefix(prefix))
    return re.sub(rf"^{TASK}(\d+)$", lambda m: f"task/{int(m[1]):02d}", name)


@cache  # asked for every metric of every run
def known(name: str) -> str:
    """As the rest of the package calls it; the bare names of earlier versions stay what they are."""
    for prefix, group in GROUPS.items():
        if name.startswith(group):
            return prefix + known(name.removeprefix(group))
    return re.sub(r"^task/(\d+)$", lambda m: f"{TASK}{int(m[1])}", name)
