"""A report as a list of blocks, rendered to Markdown, to one self-contained HTML file and to LaTeX."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pcr_ray.text import as_markdown


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Items:
    texts: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table; the first column is text. `bold` and `second` hold (row, column) of the best numbers.

    A cell's second line is what it is compared with, in small type.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    second: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Picture:
    """`file` is relative to the report; the page has the drawing itself, one for screens and one for phones."""

    file: str
    alt: str
    wide: bytes
    narrow: bytes


@dataclass(frozen=True)
class Code:
    text: str


Block = Heading | Paragraph | Items | Grid | Picture | Code

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
body { overflow-wrap: anywhere } th { overflow-wrap: normal }
h1, h2, h3 { line-height: 1.25 } h2 { margin-top: 2.2rem; border-bottom: 1px solid #ddd } h3 { margin-top: 1.8rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto }
th, td { padding: .35rem .8rem; border-bottom: 1px solid #ddd; text-align: right }
td { white-space: nowrap }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff }
figure { margin: 1.5rem 0 } figure img { width: 100%; height: auto } figcaption, small { color: #555; font-size: .85em }
code, pre { background: #f4f4f4 } pre { padding: .8rem; overflow-x: auto } u { text-underline-offset: .2em }
@media (max-width: 40rem) { body { margin: 1rem auto } th, td { padding: .3rem .45rem; font-size: .9rem } }
"""


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """As `page`, it shows names and values as text."""
    parts = [f"# {as_markdown(title)}"] if title else []
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {as_markdown(text)}")
            case Paragraph(text):
                parts.append(as_markdown(text))
            case Items(texts):
                parts.append("\n".join(f"- {as_markdown(t)}" for t in texts))
            case Grid():
                parts.append(_markdown_table(block))
            case Picture(file, alt):
                parts.append(f"![{as_markdown(alt)}]({file})")
            case Code(text):
                fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])  # longer than any inside
                parts.append(f"{fence}\n{text}\n{fence}")
    return "\n\n".join(parts) + "\n"


def _markdown_table(grid: Grid) -> str:
    """The second best is in italics: Markdown does not underline."""

    def cell(i: int, j: int, text: str) -> str:
        first, *rest = as_markdown(text).replace("|", "\\|").split("\n")
        mark = "**" if (i, j) in grid.bold else "*" if (i, j) in grid.second else ""
        return "<br>".join([f"{mark}{first}{mark}", *rest])

    lines = [[cell(-1, j, t) for j, t in enumerate(grid.header)], ["---"] + ["---:"] * (len(grid.header) - 1)]
    lines += [[cell(i, j, t) for j, t in enumerate(row)] for i, row in enumerate(grid.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(title: str, blocks: Sequence[Block]) -> str:
    """HTML with its style and drawings inside, so that it opens anywhere, offline."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"<h{level}>{html.escape(text)}</h{level}>")
            case Paragraph(text):
                parts.append(f"<p>{html.escape(text)}</p>")
            case Items(texts):
                parts.append("<ul>" + "".join(f"<li>{html.escape(t)}</li>" for t in texts) + "</ul>")
            case Grid():
                parts.append(_html_table(block))
            case Picture():
                parts.append(_html_picture(block))
            case Code(text):
                parts.append(f"<pre>{html.escape(text)}</pre>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _html_picture(picture: Picture) -> str:
    wide, narrow = (f"data:image/svg+xml;base64,{base64.b64encode(d).decode()}" for d in (picture.wide, picture.narrow))
    alt = html.escape(picture.alt)
    return (
        f'<figure><picture><source media="(max-width: 40rem)" srcset="{narrow}"><img src="{wide}" alt="{alt}">'
        f"</picture><figcaption>{alt}</figcaption></figure>"
    )


def _html_table(grid: Grid) -> str:
    def cell(i: int, j: int, text: str) -> str:
        first, *rest = html.escape(text).split("\n")
        tag = "b" if (i, j) in grid.bold else "u" if (i, j) in grid.second else ""
        return (f"<{tag}>{first}</{tag}>" if tag else first) + "".join(f"<br><small>{line}</small>" for line in rest)

    head = "".join(f"<th>{html.escape(t)}</th>" for t in grid.header)
    rows = ["".join(f"<td>{cell(i, j, t)}</td>" for j, t in enumerate(row)) for i, row in enumerate(grid.rows)]
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def latex(caption: str, grid: Grid) -> str:
    """Plain LaTeX: no package is needed."""

    def escape(text: str) -> str:
        for mark in "\\&%$#_{}":
            text = text.replace(mark, {"\\": r"\textbackslash "}.get(mark, "\\" + mark))
        return text.replace("±", r"$\pm$").replace("†", r"$\dagger$")

    def cell(i: int, j: int, text: str) -> str:
        first, *rest = map(escape, text.split("\n"))
        macro = "textbf" if (i, j) in grid.bold else "underline" if (i, j) in grid.second else ""
        first = rf"\{macro}{{{first}}}" if macro else first
        return rf"\shortstack[r]{{{first}\\ \scriptsize {' '.join(rest)}}}" if rest else first

    def line(i: int, row: Sequence[str]) -> str:
        return " & ".join(cell(i, j, t) for j, t in enumerate(row)) + r" \\"

    rows = "\n".join(line(i, row) for i, row in enumerate(grid.rows))
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{escape(caption)}}}\n\\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}\n\\hline\n"
        f"{line(-1, grid.header)}\n\\hline\n{rows}\n\\hline\n\\end{{tabular}}\n\\end{{table}}\n"
    )
