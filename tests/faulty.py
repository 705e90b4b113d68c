"""A trainable with real faults, switched by files in a control folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from trainables.online import OnlineTrainable


class UnreadableError(Exception):
    """Can be pickled, not unpickled: it would be made anew with one argument."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


class Faulty(OnlineTrainable):
    """Raises at seed 1, exits hard at seed 2, and takes its time while the file `slow` is there.

    With the file `odd`, seed 1 reports nothing that can be used, seed 2 hangs once, seed 3 never ends, seed 4 raises
    what cannot be unpickled, seed 5 is done and not complete, and seed 6 reports what cannot be unpickled.
    """

    def step(self) -> dict[str, Any]:
        control = Path(os.environ["FAULTY_CONTROL"])
        seed = self.learner.config.seed
        with (control / "attempts.txt").open("a") as file:
            file.write(f"{seed} {self.learner.tasks_done}\n")
        if (control / "raise").exists() and seed == 1 and self.learner.tasks_done == 1:
            raise RuntimeError("made to fail")
        if (control / "exit").exists() and seed == 2:
            os._exit(1)
        if (control / "odd").exists():
            return self._odd(control, seed)
        result = super().step()
        if (control / "slow").exists():
            time.sleep(2)
        return result

    def _odd(self, control: Path, seed: int) -> dict[str, Any]:
        if seed == 2 and self.learner.tasks_done == 1 and not (control / "hung").exists():
            (control / "hung").touch()
            time.sleep(3600)
        if seed == 4:
            raise UnreadableError(1, "made to fail")
        result = super().step()
        if seed == 5:
            return result | {"done": True, "complete": False}
        if seed == 6:
            return result | {"error": UnreadableError(1, "made to fail")}
        if seed == 1:
            return {"tasks": [{"accuracy": "?"}]}
        if seed == 3:
            time.sleep(0.5)
            return result | {"done": False, "complete": False}
        return result
