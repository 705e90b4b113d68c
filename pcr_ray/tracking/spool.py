"""Events of trials on disk until MLflow has them: a file of JSON lines (start, task, end) per trial.

A disk that is full or read-only does not end a sweep: what cannot be written is kept in memory, delivered from there,
and written as soon as that works.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from pcr_ray.text import first_line
from pcr_ray.tracking.runs import Status

START, TASK, END = "start", "task", "end"
PROGRESS = ".progress"  # in the sweep's folder: its time says when a trial last finished a task


class Spool:
    """The folder of event files. Appending is cheap and durable; only the courier reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.trouble: str | None = None  # why the folder cannot be written at the moment
        self._lock = threading.RLock()  # the courier has a thread of its own
        self._unwritten: dict[str, list[str]] = {}
        self._states: dict[str, dict[str, Any]] = {}
        self._forgotten: set[str] = set()  # delivered, and their files perhaps not removable

    def append(self, identity: str, event: str, **content: Any) -> None:
        """What cannot be written is kept and tried again, see `trouble`. What JSON cannot hold raises."""
        line = json.dumps({"event": event, "time": int(time.time() * 1000), **content})
        with self._lock:
            self._forgotten.discard(identity)
            self._unwritten.setdefault(identity, []).append(line)
            self.flush()

    def flush(self) -> bool:
        """Write what waits in memory; False if some of it still cannot be written."""
        with self._lock:
            try:
                for identity in list(self._unwritten):
                    self._write(identity)
                self.trouble = None
            except OSError as error:
                self.trouble = first_line(error)
            return not self._unwritten

    def _write(self, identity: str) -> None:
        lines = self._unwritten[identity]
        with self.events_file(identity).open("a", encoding="utf-8") as file:
            # The leading newline ends a line that a crash or a full disk cut short; empty lines mean nothing.
            file.write("".join(f"\n{line}\n" for line in lines))
        del self._unwritten[identity]

    def durable(self, identity: str) -> bool:
        """Whether a trial's events would survive a loss of power; waits for the disk, so not in Tune's loop."""
        with self._lock:
            if identity in self._unwritten:
                return False
        try:
            with self.events_file(identity).open("rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError:
            return True  # MLflow has them
        except OSError:
            return identity in self._forgotten
        return True

    def unwritten(self) -> list[str]:
        """Trials with events in memory alone."""
        with self._lock:
            return sorted(self._unwritten)

    def mark_progress(self) -> None:
        """For whoever starts sweeps again and wants to know, without asking MLflow, whether that gets anywhere."""
        with contextlib.suppress(OSError):
            self.folder.with_name(PROGRESS).touch()

    def events_file(self, identity: str) -> Path:
        return self.folder / f"{identity}.jsonl"

    def state_file(self, identity: str) -> Path:
        return self.folder / f"{identity}.state"

    def pending(self) -> list[str]:
        with self._lock:
            found = {f.stem for f in self.folder.glob("*.jsonl")}
            return sorted((found | self._unwritten.keys()) - self._forgotten)

    def events(self, identity: str) -> list[dict[str, Any]]:
        """All complete lines; a crash may leave half of one at the end."""
        events = []
        with self._lock:
            lines = []
            with contextlib.suppress(FileNotFoundError):
                lines = self.events_file(identity).read_text(encoding="utf-8", errors="replace").splitlines()
            lines += self._unwritten.get(identity, [])
        for line in lines:
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events

    def state(self, identity: str) -> dict[str, Any] | None:
        """What the courier noted about its delivery."""
        if identity in self._states:
            return copy.deepcopy(self._states[identity])  # what is not delivered in the end changes nothing here
        try:
            return json.loads(self.state_file(identity).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def save_state(self, identity: str, state: dict[str, Any]) -> None:
        """In memory where the disk refuses: without it all is delivered again, which changes nothing."""
        scratch = self.state_file(identity).with_suffix(".writing")
        try:
            scratch.write_text(json.dumps(state))
            scratch.replace(self.state_file(identity))
            self._states.pop(identity, None)
        except OSError:
            self._states[identity] = json.loads(json.dumps(state))

    def forget(self, identity: str) -> None:
        """All is delivered. The state goes first: events without it are delivered again, which changes nothing."""
        with self._lock:
            self._unwritten.pop(identity, None)
            self._states.pop(identity, None)
            self._forgotten.add(identity)
            with contextlib.suppress(OSError):  # read-only
                self.state_file(identity).unlink(missing_ok=True)
                self.events_file(identity).unlink(missing_ok=True)

    def finished(self) -> set[str]:
        """Trials whose numbers are complete here, delivered or not."""
        return {i for i in self.pending() if (e := self.events(i)) and e[-1].get("status") == Status.FINISHED}
