"""The learner as a Ray Tune trainable: one step is one task, with a checkpoint after each."""

from __future__ import annotations

from typing import Any

from ray import tune

from pcr_ray.checkpoints import CheckpointStore
from pcr_ray.config import TrialConfig
from pcr_ray.errors import InputError, PcrRayError
from pcr_ray.learner import Learner
from pcr_ray.text import first_line


class OnlineTrainable(tune.Trainable):
    """Continues from the trial's own checkpoint, whichever worker or earlier sweep wrote it.

    `config["case"]` has the trial's `identity`, the fingerprint of its `code`, `trial` (a resolved TrialConfig as a
    dict) and `run` (data root, storage, CPUs). A result says `complete` when the trial is: Tune's `done` may also come
    from a scheduler.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.learner: Learner | None = None  # let go of the last trial before the next is built
        self.trouble: Exception | None = None
        try:
            self._build(**config["case"])
        except Exception as error:
            self.trouble = error  # raised in `step`: Tune retries only trials that run

    def _build(self, identity: str, code: str, trial: dict[str, Any], run: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(max(1, int(run["cpus"])))
        config = TrialConfig.model_validate(trial)
        self.store = CheckpointStore(run["storage"], identity, code)
        self.note: str | None = None  # for whoever watches the sweep, with the next result
        self.learner = Learner(config, root=run["data_root"], compile=run["compile"])
        try:
            self.store.load(self.learner)
        except InputError as error:  # cut short, of another version or other data: the same numbers come again
            self.note = f"starts over, as its checkpoint cannot be used: {first_line(error)}"
            self.store.discard()
            self.learner = Learner(config, root=run["data_root"], compile=run["compile"])

    def step(self) -> dict[str, Any]:
        """One task. What is certain to fail again is reported as a result, so that Tune does not retry it."""
        try:
            if self.trouble:
                raise self.trouble
            return self._run_task()
        except PcrRayError as error:
            return {"done": True, "complete": False, "failure": str(error)}

    def _run_task(self) -> dict[str, Any]:
        learner = self.learner
        assert learner is not None
        if not learner.done:  # a trial killed after its last task has only its numbers left to report
            learner.run_task()
            self.store.save(learner)
        # All tasks' numbers, not the newest alone: a driver that died may have missed some. The spool knows.
        tasks = [learner.task_metrics(t) for t in range(1, learner.tasks_done + 1)]
        # The newest stand on their own too, for Tune's schedulers.
        status = {"done": learner.done, "complete": learner.done, "failure": None, "note": self.note}
        self.note = None
        return {**tasks[-1], **status, "tasks": tasks, "results": learner.results()}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Another trial in the same process: everything is built anew; only the imports are saved."""
        self.setup(new_config)
        return True
