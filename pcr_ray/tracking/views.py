"""Pages of MLflow's UI that show a sweep, and the view that they open with: its trials, grouped by cell.

The view is one of MLflow's own "shared views", kept as a tag of the experiment. The address of a page names it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pcr_ray.study import cells
from pcr_ray.study.load import Study
from pcr_ray.tracking.runs import Tag
from pcr_ray.tracking.store import Store

TRAINING = "workflowType=machine_learning"  # else MLflow 3 opens its pages about language models
SHARED = "mlflow.sharedViewState."
AT_MOST = 100  # runs on the compare page: each is a request, and all ids are in its address


def save(store: Store, study: Study) -> None:
    """Written again where it changed: a sweep's file may have."""
    key, text = f"{SHARED}{study.name}", json.dumps(state(study), separators=(",", ":"))
    if store.client.get_experiment(store.experiment).tags.get(key) != text:
        store.client.set_experiment_tag(store.experiment, key, text)


def state(study: Study) -> dict[str, Any]:
    """What MLflow's "Share" button would save of the runs page, had one set it up by hand."""
    y, fields = study.spec.report.metrics[0], [*cells.fields(study)]
    columns = [*fields, *(["seed"] if "seed" in study.varying else [])]
    metrics = list(dict.fromkeys([y, "final_accuracy", "forgetting", "samples_per_second"]))
    charts = [_chart("BAR", y), _chart("LINE", "average_accuracy"), _chart("BAR", "forgetting")]
    return {
        "searchFilter": f"tags.`{Tag.IN_SWEEP}{study.name}` = 'yes' and tags.`{Tag.SUPERSEDED}` IS NULL",
        "orderByKey": f"metrics.`{y}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "groupBy": {
            "aggregateFunction": "average",
            "groupByKeys": [{"mode": "param", "groupByData": field} for field in fields],
        },
        "runsHiddenMode": "SHOW_ALL",
        "selectedColumns": [f"params.`{c}`" for c in columns] + [f"metrics.`{m}`" for m in metrics],
        "compareRunSections": [_section("answer", "Answer"), _section("main", "Model metrics")],
        "compareRunCharts": charts,
    }


def _section(key: str, name: str) -> dict[str, Any]:
    return {"uuid": key, "name": name, "display": True, "isReordered": False, "deleted": False, "isGenerated": True}


def _chart(kind: str, metric: str) -> dict[str, Any]:
    own = {"uuid": f"{kind}-{metric}", "type": kind, "metricKey": metric, "displayName": metric}
    return own | {"metricSectionId": "answer", "runsCountToCompare": AT_MOST, "deleted": False, "isGenerated": False}


def runs_page(experiment: str) -> str:
    return f"#/experiments/{experiment}/runs?{TRAINING}"


def table_page(experiment: str, sweep: str) -> str:
    return f"{runs_page(experiment)}&viewStateShareKey={quote(sweep)}"


def charts_page(experiment: str, sweep: str) -> str:
    return f"{table_page(experiment, sweep)}&compareRunsMode=CHART"


def compare_page(experiment: str, runs: Sequence[str]) -> str:
    ids = quote(json.dumps(list(runs[:AT_MOST]), separators=(",", ":")))
    return f"#/compare-runs?runs={ids}&experiments={quote(json.dumps([experiment]))}&{TRAINING}"


def run_page(experiment: str, run: str) -> str:
    return f"#/experiments/{experiment}/runs/{run}?{TRAINING}"


def report_page(experiment: str, run: str) -> str:
    return f"#/experiments/{experiment}/runs/{run}/artifacts/report.html?{TRAINING}"


def markdown(experiment: str, run: str, sweep: str) -> str:
    """For the description of a sweep's run: where to go from there."""
    pages = {
        "its trials as charts": charts_page(experiment, sweep),
        "as a table": table_page(experiment, sweep),
        "the report": report_page(experiment, run),
    }
    return "Go to: " + ", ".join(f"[{name}]({page})" for name, page in pages.items())
