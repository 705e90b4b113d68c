"""A trainable whose trials are shorter than the start of all workers but the first."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ray import tune

START, TRIAL = 4.0, 0.3  # seconds


class Short(tune.Trainable):
    """Notes in the control folder which process starts, and which runs each trial."""

    def setup(self, config: dict[str, Any]) -> None:
        first = not self._note("workers.txt")
        time.sleep(0 if first else START)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True

    def step(self) -> dict[str, Any]:
        time.sleep(TRIAL)
        self._note("trials.txt")
        return {"done": True, "complete": True, "tasks": [{"task": 1, "average_accuracy": 50.0}]}

    @staticmethod
    def _note(name: str) -> str:
        """Returns what was there before."""
        file = Path(os.environ["FAULTY_CONTROL"]) / name
        before = file.read_text() if file.exists() else ""
        with file.open("a") as out:
            out.write(f"{os.getpid()}\n")
        return before
