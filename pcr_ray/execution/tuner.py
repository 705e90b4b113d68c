"""Hands trials to Ray Tune."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import tempfile
from collections import UserDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pcr_ray import plugins
from pcr_ray.config import TrialConfig
from pcr_ray.errors import InputError
from pcr_ray.execution import leftovers, verdict
from pcr_ray.execution.options import RunOptions
from pcr_ray.identity import TRAINABLE
from pcr_ray.provenance import code_of
from pcr_ray.study.load import Study
from pcr_ray.study.schema import Resources


def run(
    study: Study,
    trials: Mapping[str, TrialConfig],
    options: RunOptions,
    resources: Resources,
    callback: Any,
    scheduler: Any = None,
) -> None:
    """Run the trials to their ends. Returns normally when interrupted: the callback knows what is done."""
    from ray import tune

    from pcr_ray.execution.scheduler import InOrder

    spec = study.spec
    settings = {
        "data_root": str(options.root),
        "storage": options.checkpoints(study.name),
        "cpus": resources.cpu,
        "compile": options.compile,
        "plugins": study.plugins,
        "beside": str(study.place) if study.place else None,
    }
    # Plain validated values: Tune would evaluate some mappings of raw YAML as Python.
    # Tune copies a grid once per trial: a minute of CPU for 2,000 trials. What is neither dict nor list it puts aside,
    # copies a word in its place, and gives to its trial in the end.
    cases = [
        UserDict(identity=i, code=code_of(t, spec.trainable).fingerprint, trial=t.model_dump(), run=settings)
        for i, t in trials.items()
    ]
    bundle = {"CPU": resources.cpu} | ({"GPU": resources.gpu} if resources.gpu else {})
    with tempfile.TemporaryDirectory(prefix=leftovers.SCRATCH) as scratch, leftovers.marked(Path(scratch)):
        tune.Tuner(
            tune.with_resources(verdict.plain(load_trainable(spec.trainable)), tune.PlacementGroupFactory([bundle])),
            param_space={"case": tune.grid_search(cases)},
            tune_config=tune.TuneConfig(
                reuse_actors=True,
                max_concurrent_trials=options.max_concurrent,
                trial_dirname_creator=_trial_id,
                scheduler=scheduler or InOrder(),
            ),
            run_config=tune.RunConfig(
                name=study.name,
                storage_path=scratch,  # Tune's own state: ours is in MLflow, the spool and the checkpoints
                # None of Tune's: a worker on another node could not write into the scratch folder of this one.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=spec.retries),
                callbacks=[callback],
                stop=callback.over,
                progress_reporter=tune.CLIReporter(),  # the one for notebooks wipes the cell's output, whatever verbose
                verbose=2 if options.verbose else 0,
            ),
        ).fit()


def _trial_id(trial: Any) -> str:
    return trial.trial_id


def load_trainable(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # somebody else's code raises anything
        raise InputError(f"trainable: '{name}' cannot be imported: {plugins.why_not(error)}") from None


def check_trainable(name: str) -> None:
    """As `load_trainable`, without importing ray and torch where looking at the file is enough."""
    module, _, attribute = name.partition(":")
    if name == TRAINABLE:
        return
    try:
        spec = importlib.util.find_spec(module)
        source = Path(spec.origin).read_bytes() if spec and spec.origin else b""
        names = {getattr(node, "name", None) for node in ast.parse(source).body}
    except (Exception, SystemExit):  # the package above it is imported; `load_trainable` says what is wrong
        names = set()
    if attribute not in names:
        load_trainable(name)
