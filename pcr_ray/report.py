"""The answer of a sweep, from MLflow alone: python -m pcr_ray.report NAME|FILE"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from rich.markup import escape
from rich.table import Table

from pcr_ray.analysis.render import Block, Code, Grid, Heading, Items, Paragraph, Picture, latex, markdown, page
from pcr_ray.analysis.results import ANY, PREFIX, Answer, Cell, collect, heads, label, value_of, x_field
from pcr_ray.analysis.stats import Estimate
from pcr_ray.analysis.views import lines as figures
from pcr_ray.console import console, run
from pcr_ray.errors import InputError
from pcr_ray.study import load as sweepfile
from pcr_ray.study.load import Sweep
from pcr_ray.study.schema import NAME
from pcr_ray.text import did_you_mean
from pcr_ray.tracking.store import Record, tracking_uri

Curves = dict[tuple[str, str], list[float]]  # (identity, head) -> accuracy after each task
PLOTS = 9  # learning curves of at most so many x values: more are too small to read
TITLES = {"final_accuracy": "Final accuracy in %", "forgetting": "Forgetting in points"}


def main(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(prog="pcr-ray report", description="Write a sweep's report from MLflow alone.")
    p.add_argument("sweep", metavar="NAME|FILE", help="the name of a sweep that was run, or a sweep file")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for the sweep (with FILE)")
    p.add_argument("--tracking-uri", metavar="URI", help="where MLflow is (default: as for the sweep)")
    p.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="parent folder of the report")
    options = p.parse_args(argv)
    record = Record(tracking_uri(options.tracking_uri))
    if record.missing_file:
        raise InputError(
            f"there is no record yet: {record.missing_file} does not exist; run a sweep, or name another store"
        )
    with record.guarded():
        sweep = find(options.sweep, record, options.set)
        answer = collect(sweep, record)
    folder = write(answer, record, options.out / sweep.name)
    show(answer)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    return 0


def find(name: str, record: Record, overrides: list[str]) -> Sweep:
    """By file, or by the sweep file that was stored when a sweep of that name ran."""
    if name.endswith((".yaml", ".yml")) or Path(name).is_file():
        return sweepfile.load(name, overrides)
    parent = record.sweep_run(name) if re.match(NAME, name) else None
    if parent is None:
        known = sorted({r.info.run_name for r in record.runs(kind="sweep")})
        hint = did_you_mean(name, known) if known else "; no sweep was run with this store yet"
        raise InputError(f"no sweep '{name}' in MLflow{hint}")
    text = record.artifact_text(parent.info.run_id, "sweep.yaml")
    if text is None:
        raise InputError(f"sweep '{name}' has no stored sweep file in MLflow; name its file instead")
    return sweepfile.parse(yaml.safe_load(text), f"the stored file of sweep '{name}'", overrides, stored=True)


def write(answer: Answer, record: Record, folder: Path) -> Path:
    """results.csv, report.md, report.html, table.tex and the figures."""
    with record.guarded():
        curves = _curves(answer, record)
    try:
        _write(answer, curves, folder)
    except OSError as error:
        raise InputError(f"the report cannot be written to {folder}: {error}; name another place with --out") from None
    return folder


def _write(answer: Answer, curves: Curves, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    answer.frame.to_csv(folder / "results.csv", index=False)
    for old in folder.glob("*.png"):
        old.unlink()
    spec = answer.sweep.spec
    title = f"Sweep {spec.name}"
    blocks: list[Block] = []
    if spec.description:
        blocks.append(Paragraph(spec.description.strip()))
    if spec.report.question:
        blocks.append(Heading("Question"))
        blocks.append(Paragraph(spec.report.question.strip()))
    blocks += [Heading("Answer"), *_state(answer)]
    tex = ""
    panels = _panels(answer)
    for number, (panel, cells) in enumerate(panels, start=1):
        suffix = f"_{number}" if len(panels) > 1 else ""
        heading = ", ".join(f"{k} {v}" for k, v in panel)
        if heading:
            blocks.append(Heading(heading, 3))
        grid = table(answer, cells)
        blocks.append(grid)
        caption = f"{_y_title(answer)}{', ' + heading if heading else ''}. Mean and 95% CI. {_shared(answer.sweep)}"
        tex += latex(caption.strip(), grid)
        blocks += _figures(answer, cells, curves, folder, suffix, heading)
    blocks += _appendix(answer)
    (folder / "table.tex").write_text(tex)
    (folder / "report.md").write_text(markdown(title, blocks))
    (folder / "report.html").write_text(page(title, blocks))


Panel = tuple[tuple[str, Any], ...]


def _panels(answer: Answer) -> list[tuple[Panel, list[Cell]]]:
    """Cells by panel. A method that ignores a panel's field (no memory, so no buffer) appears in all of its panels."""
    keys = list(dict.fromkeys(c.panel for c in answer.cells))
    real = [k for k in keys if not any(_stands_for(k, other) for other in keys)]
    return [(k, [c for c in answer.cells if c.panel == k or _stands_for(c.panel, k)]) for k in real]


def _stands_for(panel: Panel, other: Panel) -> bool:
    pairs = [(a, b) for (_, a), (_, b) in zip(panel, other)]
    return panel != other and all(a in (b, ANY) for a, b in pairs)


def _state(answer: Answer) -> list[Block]:
    total = len(answer.sweep.trials)
    done = total - len(answer.missing) - len(answer.failed)
    text = f"{done} of {total} trials are finished."
    if answer.missing:
        text += f" {len(answer.missing)} have not finished yet: what follows is preliminary."
    if answer.failed:
        text += f" {len(answer.failed)} failed, see below."
    return [
        Paragraph(" ".join([text, _shared(answer.sweep)])),
        Paragraph(f"{_y_title(answer)}: mean ± 95 % confidence interval (t distribution), n seeds."),
    ]


def _shared(sweep: Sweep) -> str:
    """What all trials have in common, as the file or --set says: a quick look must not pass for the study."""
    spec = sweep.spec
    parts = [f"preset {p}" for p in spec.presets] + [f"{k} {v}" for k, v in spec.fixed.items()]
    but = ", but for adjustments" if spec.adjust else ""
    return f"In all trials{but}: {', '.join(parts)}." if parts else ""


def _y_title(answer: Answer) -> str:
    y = answer.sweep.spec.report.y
    return TITLES.get(y, y)


def _xs(answer: Answer, cells: list[Cell]) -> list[Any]:
    """Columns; a value that means "this method ignores it" is none where others exist."""
    xs = list(dict.fromkeys(c.x for c in cells))
    real = [x for x in xs if x != ANY]
    return sorted(real, key=figures.sort_key) if real and x_field(answer.sweep) else xs


def table(answer: Answer, cells: list[Cell]) -> Grid:
    """A row a series and head, a column an x; the paper's number in brackets."""
    xs, x_name = _xs(answer, cells), x_field(answer.sweep)
    rows: dict[str, dict[Any, Cell]] = {}
    for cell in cells:
        spread = xs if cell.x == ANY else [cell.x]
        for x in spread:
            rows.setdefault(label(cell, answer.sweep), {})[x] = cell
    texts = [[name, *(_cell_text(row.get(x)) for x in xs)] for name, row in rows.items()]
    bold = set()
    for j, x in enumerate(xs):
        best = max(
            (i for i, row in enumerate(rows.values()) if x in row), key=lambda i: _mean(rows, i, x), default=None
        )
        if best is not None:
            bold.add((best, j + 1))
    header = [answer.sweep.spec.report.series, *(f"{x_name} {x}" if x_name else _y_title(answer) for x in xs)]
    return Grid(
        header, texts, frozenset(bold) if answer.sweep.spec.report.y not in ("forgetting", "loss") else frozenset()
    )


def _mean(rows: dict[str, dict[Any, Cell]], index: int, x: Any) -> float:
    return next(itertools.islice(rows.values(), index, None))[x].estimate.mean


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    text = str(cell.estimate) if cell.estimate.ci is None else f"{cell.estimate}, n={cell.estimate.n}"
    if cell.paper:
        ci = f" ± {cell.paper['ci']:g}" if "ci" in cell.paper else ""
        text += f" [paper {cell.paper['value']:g}{ci}]"
    return text


def _curves(answer: Answer, record: Record) -> Curves:
    """Accuracy after each task of every finished trial and head, asked of MLflow side by side."""
    sweep = answer.sweep
    metrics = [(i, run, h) for i, run in answer.runs.items() for h in heads(sweep.spec.report, sweep.trials[i])]

    def ask(item: tuple[str, str, str]) -> tuple[tuple[str, str], list[float]]:
        identity, run_id, head = item
        history = record.client.get_metric_history(run_id, f"{PREFIX[head]}average_accuracy")
        return (identity, head), [v for _, v in sorted({m.step: m.value for m in history}.items())]

    with ThreadPoolExecutor(8) as pool:
        return {key: values for key, values in pool.map(ask, metrics) if values}


def _figures(answer: Answer, cells: list[Cell], curves: Curves, folder: Path, suffix: str, heading: str) -> list[Block]:
    sweep, xs, x_name = answer.sweep, _xs(answer, cells), x_field(answer.sweep)
    blocks: list[Block] = []
    names = list(dict.fromkeys(label(c, sweep) for c in answer.cells))
    data: dict[str, dict[Any, Estimate]] = {}
    across: dict[str, Estimate] = {}
    paper: dict[str, dict[Any, float]] = {}
    for cell in cells:
        name = label(cell, sweep)
        if cell.x in xs:
            data.setdefault(name, {})[cell.x] = cell.estimate
        else:
            across[name] = cell.estimate
        if cell.paper:
            paper.setdefault(name, {})[cell.x] = cell.paper["value"]
    if x_name and len(xs) > 1:
        figure = figures.lines(
            data, across, paper, names, xlabel=x_name, ylabel=_y_title(answer), title=heading or sweep.spec.name
        )
        file = folder / f"{sweep.spec.report.y}_by_{x_name.replace('.', '_')}{suffix}.png"
        figure.savefig(file, dpi=130)
        blocks.append(Picture(file, f"{_y_title(answer)} by {x_name}"))
    stages = _stages(answer, cells, curves, xs, x_name)
    if stages and any(len(run) > 1 for series in stages.values() for runs in series.values() for run in runs):
        file = folder / f"learning_curves{suffix}.png"
        first = f" (the first {PLOTS} of {len(xs)} values of {x_name})" if len(xs) > PLOTS else ""
        title = f"Accuracy on the tasks seen so far{first}"
        figures.curves(stages, names, ylabel="average accuracy in %", title=title).savefig(file, dpi=130)
        blocks.append(Picture(file, f"Average accuracy after each task{first}"))
    return blocks


def _stages(
    answer: Answer, cells: list[Cell], curves: Curves, xs: list[Any], x_name: str
) -> dict[str, dict[str, list[list[float]]]]:
    """Heading -> series -> one curve a seed."""
    stages: dict[str, dict[str, list[list[float]]]] = {f"{x_name} {x}" if x_name else "": {} for x in xs[:PLOTS]}
    keys = {(c.panel, c.series, c.head, c.x): c for c in cells}
    spec, panel_names = answer.sweep.spec.report, [f for f, _ in cells[0].panel]
    for (identity, head), values in curves.items():
        trial = answer.sweep.trials[identity]
        panel = tuple((f, value_of(trial, f)) for f in panel_names)
        cell = keys.get((panel, value_of(trial, spec.series), head, value_of(trial, x_name) if x_name else None))
        if cell is None:
            continue
        for x in xs[:PLOTS] if cell.x not in xs else [cell.x]:
            place = f"{x_name} {x}" if x_name else ""
            if place in stages:
                stages[place].setdefault(label(cell, answer.sweep), []).append(values)
    return stages


def _appendix(answer: Answer) -> list[Block]:
    sweep = answer.sweep
    blocks: list[Block] = []
    if answer.failed:
        blocks.append(Heading("Failed trials"))
        blocks.append(Items([f"{sweep.trial_name(i)}: {reason}" for i, reason in answer.failed.items()]))
    if answer.missing:
        names = [sweep.trial_name(i) for i in answer.missing]
        more = [f"… and {len(names) - 50} more"] if len(names) > 50 else []
        blocks += [Heading("Missing trials"), Items(names[:50] + more)]
    blocks += [Heading("The sweep as it was run"), Code(sweep.to_yaml(paper=False).strip())]
    return blocks


def show(answer: Answer) -> None:
    """The answer on the console."""
    if shared := _shared(answer.sweep):
        console.print(shared, markup=False)
    for panel, cells in _panels(answer):
        grid = table(answer, cells)
        heading = ", ".join(f"{k} {v}" for k, v in panel)
        title = f"{_y_title(answer)}, mean ± 95 % CI" + (f": {heading}" if heading else "")
        console.print(title)
        view = Table()
        for j, name in enumerate(grid.header):
            view.add_column(name, justify="left" if j == 0 else "right")
        for i, row in enumerate(grid.rows):
            view.add_row(*(f"[bold]{escape(t)}[/]" if (i, j) in grid.bold else escape(t) for j, t in enumerate(row)))
        console.print(view)
    if answer.missing:
        console.print(f"{len(answer.missing)} of {len(answer.sweep.trials)} trials are not finished: preliminary.")
    for identity, reason in answer.failed.items():
        console.print(f"failed: {answer.sweep.trial_name(identity)}: {reason}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run(main))
