"""A trainable that never finishes a task."""

from __future__ import annotations

import time
from typing import Any

from trainables.online import OnlineTrainable


class Stuck(OnlineTrainable):
    def step(self) -> dict[str, Any]:
        time.sleep(3600)
        return super().step()
