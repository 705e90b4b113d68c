"""Events of trials on disk until MLflow has them: a file of JSON lines (start, task, end) per trial."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pcr_ray.tracking.runs import Status

START, TASK, END = "start", "task", "end"


class Spool:
    """The folder of event files. Appending is cheap and durable; only the courier reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, identity: str, event: str, **content: Any) -> None:
        # The leading newline ends a line that a crash cut short; empty lines mean nothing.
        line = "\n" + json.dumps({"event": event, "time": int(time.time() * 1000), **content}) + "\n"
        with self.events_file(identity).open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            if event == END:  # the checkpoint goes when this is written
                os.fsync(file.fileno())

    def events_file(self, identity: str) -> Path:
        return self.folder / f"{identity}.jsonl"

    def state_file(self, identity: str) -> Path:
        return self.folder / f"{identity}.state"

    def pending(self) -> list[str]:
        return sorted(f.stem for f in self.folder.glob("*.jsonl"))

    def events(self, identity: str) -> list[dict[str, Any]]:
        """All complete lines; a crash may leave half of one at the end."""
        events = []
        try:
            lines = self.events_file(identity).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        for line in lines:
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events

    def state(self, identity: str) -> dict[str, Any] | None:
        """What the courier noted about its delivery."""
        try:
            return json.loads(self.state_file(identity).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def save_state(self, identity: str, state: dict[str, Any]) -> None:
        scratch = self.state_file(identity).with_suffix(".writing")
        scratch.write_text(json.dumps(state))
        scratch.replace(self.state_file(identity))

    def forget(self, identity: str) -> None:
        """All is delivered. The state goes first: events without it are delivered again, which changes nothing."""
        self.state_file(identity).unlink(missing_ok=True)
        self.events_file(identity).unlink(missing_ok=True)

    def finished(self) -> set[str]:
        """Trials whose numbers are complete here, delivered or not."""
        return {i for i in self.pending() if (e := self.events(i)) and e[-1].get("status") == Status.FINISHED}
