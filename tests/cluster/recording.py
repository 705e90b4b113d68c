"""A trainable that writes down where each task was begun and ended, and takes its time while the file `slow` is there.

The folder is FAULTY_CONTROL, which all hosts share.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from trainables.online import OnlineTrainable


class Recording(OnlineTrainable):
    def step(self) -> dict[str, Any]:
        if self.learner is None or self.learner.done:
            return super().step()  # nothing to do but to report
        self._note("begun")
        deadline = time.monotonic() + 6
        while (self._folder / "slow").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        result = super().step()
        self._note("ended")
        return result

    @property
    def _folder(self) -> Path:
        return Path(os.environ["FAULTY_CONTROL"])

    def _note(self, what: str) -> None:
        config = self.learner.config
        with (self._folder / "tasks.txt").open("a") as file:
            file.write(f"{what} {socket.gethostname()} {config.method} {config.seed} {self.learner.tasks_done}\n")
