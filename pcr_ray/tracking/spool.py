"""Events of trials on disk, delivered to MLflow by a thread, once each, whenever the store can be reached.

Every trial has a file of JSON lines (start, task, end). Delivery is repeatable: a run is adopted before one is
made, steps that a run already has are not sent again, and metrics carry the time of their event. So a crash or a
server that is away at any point loses nothing and doubles nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from pcr_ray.text import redact
from pcr_ray.tracking import trial_files as artifacts
from pcr_ray.tracking.store import IDENTITY, KIND, PARENT, REASON, SWEEP, Record, param_text

PATIENCE = (1.0, 30.0)  # seconds between attempts while the store is away: first, longest
TERMINAL = "end"
NOTHING_YET: dict[str, Any] = {"delivered": 0, "run": None, "steps": []}


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
            if event == TERMINAL:  # the checkpoint goes when this is written
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

    def state(self, identity: str) -> dict[str, Any]:
        try:
            return json.loads(self.state_file(identity).read_text())
        except (FileNotFoundError, ValueError):
            return dict(NOTHING_YET)

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
        return {i for i in self.pending() if (e := self.events(i)) and e[-1].get("status") == "FINISHED"}


class Courier:
    """Delivers a spool to a record, in a thread of its own."""

    def __init__(self, spool: Spool, record: Record, sweep: str, parent: str) -> None:
        self.spool, self.record, self.sweep, self.parent = spool, record, sweep, parent
        self.store = hashlib.sha256(record.uri.encode()).hexdigest()[:16]  # not the URI: it may hold a password
        self.trouble: str | None = None  # why the store cannot be reached at the moment
        self._wake, self._stop = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mlflow-courier", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, timeout: float) -> bool:
        """Stop the thread and deliver what is left; False if that took longer than `timeout`."""
        self._stop.set()
        self._wake.set()
        if self._thread:
            self._thread.join(timeout)
        deadline = time.monotonic() + timeout
        wait = PATIENCE[0]
        while not self.deliver_all():
            if time.monotonic() + wait > deadline:
                return False
            time.sleep(wait)
            wait = min(2 * wait, PATIENCE[1])
        return True

    def _work(self) -> None:
        wait = PATIENCE[0]
        while not self._stop.is_set():
            self._wake.wait(timeout=wait)
            self._wake.clear()
            if self.deliver_all():
                wait = PATIENCE[0]
            else:
                self._stop.wait(wait)
                wait = min(2 * wait, PATIENCE[1])

    def deliver_all(self) -> bool:
        """One round over all trials; False if something could not be delivered yet."""
        trouble = None
        with self._lock:
            for identity in self.spool.pending():
                try:
                    self._deliver(identity)
                except Exception as error:  # whatever the store says: try again later
                    trouble = redact(error).splitlines()[0][:200] if str(error) else type(error).__name__
                    if not self.record.reachable():
                        break
                    # This trial alone: its run may be gone or belong to another store. Begin anew with it next time.
                    self.spool.save_state(identity, dict(NOTHING_YET))
            self.trouble = trouble
        return trouble is None

    def _deliver(self, identity: str) -> None:
        state, events = self.spool.state(identity), self.spool.events(identity)
        if state.get("store", self.store) != self.store:
            state = dict(NOTHING_YET)
        fresh = events[state["delivered"] :]
        if not fresh:
            return
        if state["run"] is None:
            found = self._adopt(identity)
            if found and found.pop("finished") and events[-1].get("status") != "FINISHED":
                self.spool.forget(identity)  # somebody else finished it meanwhile
                return
            state |= (found or self._create(identity, events[0])) | {"store": self.store}
            self.spool.save_state(identity, state)
        run = state["run"]
        for start in [e for e in fresh if e["event"] == "start"][-1:]:
            self._begin(run, start["params"])
        self._send_metrics(run, [e for e in fresh if e["event"] == "task"], state)
        if fresh[-1]["event"] == TERMINAL:
            self._finish(run, fresh[-1])
            self.spool.forget(identity)
            return
        state["delivered"] = len(events)
        self.spool.save_state(identity, state)

    def _adopt(self, identity: str) -> dict[str, Any] | None:
        """A trial has one run, whoever began it."""
        run = next(self.record.runs(kind="trial", identity=identity), None)
        if run is None:
            return None
        history = self.record.client.get_metric_history(run.info.run_id, "average_accuracy")
        steps = sorted({m.step for m in history})
        return {"run": run.info.run_id, "steps": steps, "finished": run.info.status == "FINISHED"}

    def _create(self, identity: str, start: dict[str, Any]) -> dict[str, Any]:
        tags = {KIND: "trial", IDENTITY: identity, SWEEP: self.sweep, PARENT: self.parent}
        created = self.record.client.create_run(
            self.record.experiment, start_time=start["time"], tags=tags, run_name=start["name"]
        )
        return {"run": created.info.run_id, "steps": []}

    def _begin(self, run: str, config: dict[str, Any]) -> None:
        """Logging the same parameters again is allowed, so a crash in between leaves none out."""
        from mlflow.entities import Param

        params = [Param(k, param_text(v)) for k, v in config.items()]
        for i in range(0, len(params), 100):
            self.record.client.log_batch(run, params=params[i : i + 100])
        self.record.client.update_run(run, status="RUNNING")

    def _send_metrics(self, run: str, tasks: list[dict[str, Any]], state: dict[str, Any]) -> None:
        """All new steps in as few requests as MLflow allows."""
        from mlflow.entities import Metric

        metrics = []
        for event in tasks:
            if event["task"] not in state["steps"]:
                state["steps"].append(event["task"])
                metrics += [Metric(key, value, event["time"], event["task"]) for key, value in event["metrics"].items()]
        for i in range(0, len(metrics), 1000):
            self.record.client.log_batch(run, metrics=metrics[i : i + 1000])

    def _finish(self, run: str, end: dict[str, Any]) -> None:
        client = self.record.client
        if end.get("results"):
            artifacts.log_trial(client, run, end["results"])
        if end.get("reason") or end["status"] == "FINISHED":
            client.set_tag(run, REASON, redact(end.get("reason") or "")[:4000])
        client.set_terminated(run, status=end["status"], end_time=end["time"])
