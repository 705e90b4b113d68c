"""An answer as a report: results.csv, report.md, report.html, table.tex, figures, and tables on the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pcr_ray.analysis import comparisons, tables, words
from pcr_ray.analysis.render import Block, Code, Heading, Items, Paragraph, Picture, latex, markdown, page
from pcr_ray.analysis.results import Answer, Cell, Panel
from pcr_ray.analysis.views import VIEWS
from pcr_ray.errors import InputError
from pcr_ray.study.load import Study
from pcr_ray.text import count

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
    compared = comparisons.compare(answer)
    comparisons.frame(answer, compared).to_csv(folder / "comparisons.csv", index=False)
    for old in folder.glob("*.png"):
        old.unlink()
    spec = answer.study.spec
    title = f"Sweep {spec.name}"
    blocks: list[Block] = []
    if spec.description:
        blocks.append(Paragraph(spec.description.strip()))
    if spec.report.question:
        blocks += [Heading("Question"), Paragraph(spec.report.question.strip())]
    blocks += [Heading("Answer"), *_state(answer)]
    tex = ""
    panels = tables.panels(answer)
    for number, (panel, cells) in enumerate(panels, start=1):
        suffix = f"_{number}" if len(panels) > 1 else ""
        heading = tables.heading(panel)
        if heading:
            blocks.append(Heading(heading, 3))
        grid = tables.table(answer, cells)
        blocks.append(grid)
        place = f", {heading}" if heading else ""
        tex += latex(f"{tables.metric_of(answer).label}{place}. Mean and 95% CI. {shared(answer.study)}".strip(), grid)
        blocks += _figures(answer, panel, cells, folder, suffix)
        if own := [c for c in compared if c.panel == panel]:
            blocks += [Paragraph(PAIRED), comparisons.grid(answer, own)]
    blocks += _appendix(answer)
    (folder / "table.tex").write_text(tex)
    (folder / "report.md").write_text(markdown(title, blocks))
    (folder / "report.html").write_text(page(title, blocks))


def _state(answer: Answer) -> list[Block]:
    total = len(answer.study.trials)
    done = total - len(answer.missing) - len(answer.failed)
    text = f"Finished: {done} of {count(total, 'trial')}."
    if answer.failed:
        text += f" {len(answer.failed)} failed, see below."
    blocks: list[Block] = [
        Paragraph(" ".join([text, shared(answer.study)])),
        Paragraph(f"{tables.metric_of(answer).label}: mean ± 95 % confidence interval (t distribution), n seeds."),
    ]
    notes = [*words.sentences(answer), words.beside_the_paper(answer), tables.code_note(answer)]
    return [Paragraph(note) for note in notes if note] + blocks


def shared(study: Study) -> str:
    """What all trials have in common, as the file or --set says: a quick look must not pass for the study."""
    spec = study.spec
    parts = [f"preset {p}" for p in spec.presets] + [f"{k} {v}" for k, v in spec.fixed.items()]
    but = ", but for adjustments" if spec.adjust else ""
    return f"In all trials{but}: {', '.join(parts)}." if parts else ""


def note(answer: Answer) -> str:
    """The answer as Markdown, short enough for the description of a run: words and tables."""
    blocks: list[Block] = [Paragraph(answer.study.spec.description.strip())] if answer.study.spec.description else []
    blocks += _state(answer)
    for panel, cells in tables.panels(answer):
        blocks += [Heading(tables.heading(panel), 3)] if panel else []
        blocks.append(tables.table(answer, cells))
    return markdown(answer.study.spec.report.question.strip() or f"Sweep {answer.study.name}", blocks)


def _figures(answer: Answer, panel: Panel, cells: list[Cell], folder: Path, suffix: str) -> list[Block]:
    blocks: list[Block] = []
    for kind in answer.study.spec.report.figures:
        for stem, caption, figure in VIEWS[kind](answer, panel, cells):
            file = folder / f"{stem}{suffix}.png"
            figure.savefig(file, dpi=130)
            blocks.append(Picture(file, caption))
    return blocks


def _appendix(answer: Answer) -> list[Block]:
    study = answer.study
    blocks: list[Block] = []
    if answer.failed:
        blocks.append(Heading("Failed trials"))
        blocks.append(Items([f"{study.describe(i)}: {reason}" for i, reason in answer.failed.items()]))
    if answer.missing:
        names = [study.describe(i) for i in answer.missing]
        more = [f"… and {len(names) - LISTED} more"] if len(names) > LISTED else []
        blocks += [Heading("Missing trials"), Items(names[:LISTED] + more)]
    blocks += [Heading("The sweep as it was run"), Code(study.to_yaml(paper=False).strip())]
    return blocks


def show(answer: Answer, console: Console) -> None:
    """The answer on the console."""
    if common := shared(answer.study):
        console.print(common, markup=False)
    for panel, cells in tables.panels(answer):
        grid = tables.table(answer, cells)
        heading = tables.heading(panel)
        title = f"{tables.metric_of(answer).label}, mean ± 95 % CI" + (f": {heading}" if heading else "")
        console.print(title, markup=False)
        view = Table()
        for j, name in enumerate(grid.header):
            view.add_column(name, justify="left" if j == 0 else "right")
        for i, row in enumerate(grid.rows):
            view.add_row(*(f"[bold]{escape(t)}[/]" if (i, j) in grid.bold else escape(t) for j, t in enumerate(row)))
        console.print(view)
    for note in (*words.sentences(answer), words.beside_the_paper(answer), tables.code_note(answer)):
        if note:
            console.print(note, markup=False, soft_wrap=True)
    for identity, reason in answer.failed.items():
        console.print(f"failed: {answer.study.describe(identity)}: {reason}", markup=False, soft_wrap=True)
