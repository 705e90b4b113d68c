"""A report as a list of blocks, rendered to Markdown, to one self-contained HTML file and to LaTeX."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


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
    """A table; the first column is text, `bold` holds (row, column) of the best numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Picture:
    file: Path
    alt: str


@dataclass(frozen=True)
class Code:
    text: str


Block = Heading | Paragraph | Items | Grid | Picture | Code

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto }
th, td { padding: .35rem .8rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% } code, pre { background: #f4f4f4 } pre { padding: .8rem; overflow-x: auto }
small { color: #666 }
"""


def markdown(title: str, blocks: Sequence[Block]) -> str:
    parts = [f"# {title}"]
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {text}")
            case Paragraph(text):
                parts.append(text)
            case Items(texts):
                parts.append("\n".join(f"- {t}" for t in texts))
            case Grid():
                parts.append(_markdown_table(block))
            case Picture(file, alt):
                parts.append(f"![{alt}]({file.name})")
            case Code(text):
                parts.append(f"```\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _markdown_table(grid: Grid) -> str:
    def cell(i: int, j: int, text: str) -> str:
        text = text.replace("|", "\\|")
        return f"**{text}**" if (i, j) in grid.bold else text

    lines = [list(grid.header), ["---"] + ["---:"] * (len(grid.header) - 1)]
    lines += [[cell(i, j, t) for j, t in enumerate(row)] for i, row in enumerate(grid.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(title: str, blocks: Sequence[Block]) -> str:
    """HTML with its style and pictures inside, so that it opens anywhere, offline."""
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
            case Picture(file, alt):
                data = base64.b64encode(file.read_bytes()).decode()
                parts.append(f'<p><img src="data:image/png;base64,{data}" alt="{html.escape(alt)}"></p>')
            case Code(text):
                parts.append(f"<pre>{html.escape(text)}</pre>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _html_table(grid: Grid) -> str:
    head = "".join(f"<th>{html.escape(t)}</th>" for t in grid.header)
    body = ""
    for i, row in enumerate(grid.rows):
        cells = [f"<b>{html.escape(t)}</b>" if (i, j) in grid.bold else html.escape(t) for j, t in enumerate(row)]
        body += "<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>\n"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def latex(caption: str, grid: Grid) -> str:
    def escape(text: str) -> str:
        for mark in "\\&%$#_{}":
            text = text.replace(mark, {"\\": r"\textbackslash "}.get(mark, "\\" + mark))
        return text.replace("±", r"$\pm$")

    def line(i: int, row: Sequence[str]) -> str:
        cells = [rf"\textbf{{{escape(t)}}}" if (i, j) in grid.bold else escape(t) for j, t in enumerate(row)]
        return " & ".join(cells) + r" \\"

    rows = "\n".join(line(i, row) for i, row in enumerate(grid.rows))
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{escape(caption)}}}\n\\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}\n\\hline\n"
        f"{line(-1, grid.header)}\n\\hline\n{rows}\n\\hline\n\\end{{tabular}}\n\\end{{table}}\n"
    )
