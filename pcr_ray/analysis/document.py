"""An answer as a report: results.csv, report.md, report.html, table.tex, figures, and tables on the console."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pcr_ray.analysis import comparisons, tables, words
from pcr_ray.analysis.render import Block, Code, Grid, Heading, Items, Paragraph, Picture, latex, markdown, page
from pcr_ray.analysis.results import Answer, Cell
from pcr_ray.analysis.views import OF_A_METRIC, VIEWS
from pcr_ray.errors import InputError
from pcr_ray.study.cells import Panel
from pcr_ray.study.load import Study
from pcr_ray.study.search import describe
from pcr_ray.text import as_markdown, count, grouped
from pcr_ray.tracking.sweep_run import FIGURES

SEARCH = "search.csv"
RETRY = "To try failed trials again, add --rerun failed to the sweep's command"
LISTED = 50  # missing trials by name
PAIRED = (
    "Differences, paired by seed (all methods see the same stream for the same seed), with their 95 % interval; bold "
    "where it does not contain 0. Holm corrects the t-test over this table."
)


def write(answer: Answer, folder: Path) -> Path:
    """All files of the report."""
    try:
        _write(answer, folder)
    except OSError as error:
        raise InputError(f"the report cannot be written to {folder}: {error}; name another place with --out") from None
    return folder


def _write(answer: Answer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    answer.frame.to_csv(folder / "results.csv", index=False)
    views = answer.by_metric
    compared = [comparisons.frame(view, comparisons.compare(view)) for view in views]
    pd.concat(compared).to_csv(folder / "comparisons.csv", index=False)
    figures = folder / FIGURES
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir()
    spec = answer.study.spec
    title = f"Sweep {spec.name}"
    blocks: list[Block] = []
    if spec.description:
        blocks.append(Paragraph(spec.description.strip()))
    if spec.report.question:
        blocks += [Heading("Question"), Paragraph(spec.report.question.strip())]
    tex = ""
    for view in views:
        more = f": {tables.metric_of(view).title.lower()}" if len(views) > 1 else ""
        blocks += [Heading(f"Answer{more}"), *_state(view), *_panels(view, figures, first=view is views[0])]
        for panel, cells in tables.panels(view):
            tex += latex(_caption(view, panel), tables.table(view, cells))
    blocks += [*_tuning(answer, folder), *_trials(answer), *_reproduce(answer)]
    (folder / "table.tex").write_text(tex)
    (folder / "report.md").write_text(markdown(title, blocks))
    (folder / "report.html").write_text(page(title, blocks))


def _panels(answer: Answer, figures: Path, *, first: bool) -> list[Block]:
    """Tables, figures and comparisons of one metric, panel by panel. What has no metric is in the `first`."""
    blocks: list[Block] = []
    panels, compared = tables.panels(answer), comparisons.compare(answer)
    for number, (panel, cells) in enumerate(panels, start=1):
        suffix = f"_{number}" if len(panels) > 1 else ""
        if panel:
            blocks.append(Heading(tables.heading(panel), 3))
        blocks += [tables.table(answer, cells), *_figures(answer, panel, cells, figures, suffix, first=first)]
        if own := [c for c in compared if c.panel == panel]:
            blocks += [Paragraph(PAIRED), comparisons.grid(answer, own)]
        if first and (wide := tables.details(answer, cells)):
            blocks += [Paragraph(f"In detail: {tables.seeds(answer)}."), wide]
    return blocks


def _caption(answer: Answer, panel: Panel) -> str:
    place = f", {tables.heading(panel)}" if panel else ""
    label = tables.metric_of(answer).label
    return f"{label}{place}: {tables.seeds(answer)}. Best bold, second underlined. {shared(answer.study)}".strip()


def _state(answer: Answer) -> list[Block]:
    total = len(answer.study.trials)
    done = total - len(answer.missing) - len(answer.failed)
    text = f"Finished: {done} of {count(total, 'trial')}."
    if answer.failed:
        text += f" {len(answer.failed)} failed, see below."
    blocks = [
        Paragraph(" ".join([text, shared(answer.study)])),
        Paragraph(
            f"{tables.metric_of(answer).label}: {tables.seeds(answer)}. The best is bold, the second underlined or in "
            "italics."
        ),
    ]
    return [*map(Paragraph, _said(answer) + _known(answer)), *blocks]


def _said(answer: Answer) -> list[str]:
    """The answer in words."""
    return [*words.of_proxies(answer), *words.sentences(answer)]


def _known(answer: Answer) -> list[str]:
    """What must be known with it."""
    return [text for text in (describe(answer.study), words.beside_the_paper(answer), tables.code_note(answer)) if text]


def shared(study: Study) -> str:
    """What all trials have in common, as the file or --set says: a quick look must not pass for the study."""
    spec = study.spec
    parts = [f"preset {p}" for p in spec.presets] + [f"{k} {v}" for k, v in spec.fixed.items()]
    but = ", but for adjustments" if spec.adjust else ""
    return f"In all trials{but}: {', '.join(parts)}." if parts else ""


def note(answer: Answer) -> tuple[str, str]:
    """For the description of a run, as Markdown: the answer in words, then tables and what must be known with them."""
    spec, views = answer.study.spec, answer.by_metric
    said = [text for view in views for text in _said(view)]
    blocks: list[Block] = []
    for view in views:
        for panel, cells in tables.panels(view):
            blocks += [Heading(tables.heading(panel), 3)] if panel else []
            blocks.append(tables.table(view, cells))
        blocks += _state(view)[len(_said(view)) :]
    if spec.report.question:
        blocks.append(Paragraph(f"The question: {spec.report.question.strip()}"))
    if spec.description:
        blocks.append(Paragraph(spec.description.strip()))
    return "\n\n".join(map(as_markdown, said)), markdown("", blocks)


def _figures(
    answer: Answer, panel: Panel, cells: list[Cell], folder: Path, suffix: str, *, first: bool
) -> list[Block]:  # fmt: skip
    blocks: list[Block] = []
    kinds = [kind for kind in answer.study.spec.report.figures if first or kind in OF_A_METRIC]
    for plot in [plot for kind in kinds for plot in VIEWS[kind](answer, panel, cells)]:
        file = folder / f"{plot.stem}{suffix}.png"
        file.write_bytes(plot.png())
        blocks.append(Picture(f"{FIGURES}/{file.name}", plot.caption, plot.svg(), plot.svg(narrow=True)))
    return blocks


def _tuning(answer: Answer, folder: Path) -> list[Block]:
    """The settings that a search chose; all that it tried are in search.csv."""
    search = answer.study.spec.search
    if search is None:
        return []
    rows, tried = [], []
    for found in search.chosen:
        where = ", ".join(f"{k} {v}" for k, v in found.when.items())
        rows.append([where, *(str(found.set[name]) for name in search.space), f"{found.value:.1f}"])
        for one in found.tried:
            tried.append({**found.when, **one.set, search.metric: one.value, "chosen": one.set == found.set})
    pd.DataFrame(tried).to_csv(folder / SEARCH, index=False)
    grid = Grid(["combination", *search.space, search.metric], rows)
    return [Heading("Chosen settings"), Paragraph(f"{describe(answer.study)} All that were tried: {SEARCH}."), grid]


def _trials(answer: Answer) -> list[Block]:
    """Those that failed, are missing, or were made by other code than the present."""
    study = answer.study
    lists = {
        "Failed trials": answer.failed,
        "Missing trials": dict.fromkeys(answer.missing, ""),
        "Trials of other code than today's": {i: f"other {', '.join(names)}" for i, names in answer.outdated.items()},
    }
    blocks: list[Block] = []
    for title, trials in lists.items():
        texts = grouped({study.describe(identity): reason for identity, reason in trials.items()})
        more = [f"… and {len(texts) - LISTED} more"] if len(texts) > LISTED else []
        blocks += [Heading(title), Items(texts[:LISTED] + more)] if texts else []
        if trials is answer.failed and texts:
            blocks.append(Paragraph(f"{RETRY}."))
    return blocks


def _reproduce(answer: Answer) -> list[Block]:
    """The file as it was run, the command, and what it ran with."""
    study, runs = answer.study, answer.runs.values()
    facts = [f"{name} {version}" for name, version in answer.versions.items() if name != "machine"]
    lines = [f"Versions: {', '.join(facts)}."] if facts else []
    for what, found in (("Commit", [r.commit for r in runs]), ("Host", [r.node for r in runs])):
        if names := sorted({name for name in found if name}):
            lines.append(f"{what}{'s' if len(names) > 1 else ''}: {', '.join(names)}.")
    if machine := answer.versions.get("machine"):
        lines.append(f"The sweep was driven from: {machine}.")
    return [
        Heading("How to reproduce it"),
        Paragraph(f"Save this as {study.name}.yaml; trials that a store has are not run again:"),
        Code(study.to_yaml(paper=False).strip()),
        Code(f"python -m pcr_ray.sweep {study.name}.yaml"),
        *([Items(lines)] if lines else []),
    ]


def _console_table(grid: Grid) -> Table:
    shown = Table()
    for j, name in enumerate(grid.header):
        shown.add_column(name, justify="left" if j == 0 else "right")
    for i, row in enumerate(grid.rows):
        texts = []
        for j, cell in enumerate(row):
            first, *rest = escape(cell).split("\n")
            mark = "bold" if (i, j) in grid.bold else "underline" if (i, j) in grid.second else ""
            texts.append("\n".join([f"[{mark}]{first}[/]" if mark else first, *(f"[dim]{line}[/]" for line in rest)]))
        shown.add_row(*texts)
    return shown


def show(answer: Answer, console: Console) -> None:
    """The answer on the console."""
    if common := shared(answer.study):
        console.print(common, markup=False)
    for view in answer.by_metric:
        for panel, cells in tables.panels(view):
            heading = tables.heading(panel)
            title = f"{tables.metric_of(view).label}, {tables.seeds(view)}" + (f": {heading}" if heading else "")
            console.print(title, markup=False, soft_wrap=True)
            console.print(_console_table(tables.table(view, cells)))
        for note in (
            *words.of_proxies(view),
            *words.sentences(view),
            words.beside_the_paper(view),
            tables.code_note(view),
        ):
            if note:
                console.print(note, markup=False, soft_wrap=True)
    for text in grouped({answer.study.describe(i): reason for i, reason in answer.failed.items()}):
        console.print(f"failed: {text}", markup=False, soft_wrap=True)
