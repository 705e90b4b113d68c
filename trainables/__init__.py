"""Ray Tune trainables. `trainable: package.module:Class` in a sweep file names another one.

The contract, for a class of your own (`tests/faulty.py` is a small one, a subclass of `online.OnlineTrainable`):

- It is a `ray.tune.Trainable` that workers can import: installed, on PYTHONPATH, or sent along with `--ship`.
- `setup(config)` and `reset_config(config)` get `config["case"]`: `identity`, `code` (a fingerprint), `trial` (a dict
  for `TrialConfig.model_validate`) and `run` (`data_root`, `beside`, `storage`, `cpus`, `compile`, `plugins`). Plugins
  are loaded with `pcr_ray.plugins.load_modules(run["plugins"])` before the method or dataset is asked for.
- What goes wrong in `setup` is kept and raised in `step`: Tune retries only trials that run.
- `step()` is one task. Its result has `done` (for Tune), `complete` (the trial is finished), `failure` (None, or the
  reason why another attempt would fail too), `tasks` (the metrics of every task so far, as `Learner.task_metrics` gives
  them: those that were missed are made up for) and `results` (as `Learner.results`).
- It keeps its own checkpoints in `run["storage"]` (`pcr_ray.checkpoints.CheckpointStore`) and continues from them:
  Tune's are off. Its module's source is part of the trial's code, and its name part of the trial's identity.
"""
