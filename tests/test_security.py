"""What SECURITY.md promises: files run no code, texts stay texts, passwords stay where they were put."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pcr_ray import ui
from pcr_ray.analysis.render import Code, Grid, Heading, Items, Paragraph, Picture, markdown, page
from pcr_ray.cli import main
from pcr_ray.console import run
from pcr_ray.errors import InputError, NotNowError
from pcr_ray.learner import Learner
from pcr_ray.study.load import load
from pcr_ray.study.resolve import resolve
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Tag
from pcr_ray.tracking.spool import END, START, Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from tests.sweeping import sweep_file

HOSTILE = "<script>alert('x')</script>"


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_a_checkpoint_runs_no_code(tmp_path: Path, root: Path) -> None:
    torch.save({"config": Payload(tmp_path / "ran")}, tmp_path / "checkpoint.pt")
    learner = Learner(resolve({"dataset": "digits", "fraction": 0.1, "buffer": 20}), root=root)
    with pytest.raises(InputError, match="is damaged"):
        learner.load(tmp_path)
    assert not (tmp_path / "ran").exists()


def store_again(folder: Path, **keys: Any) -> None:
    """Somebody changes the stored file of the sweep 'tiny'."""
    study, store = load(sweep_file(folder)), Store(f"sqlite:///{folder}/mlflow.db")
    run = SweepRun(store, study)
    run.begin()
    store.client.log_text(run.run_id, yaml.safe_dump(yaml.safe_load(study.to_yaml()) | keys), "sweep.yaml")


@pytest.mark.parametrize("command", ["status", "report", "ui"])
def test_looking_at_a_sweep_imports_nothing_that_the_store_names(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name, ran = f"planted_for_{command}", tmp_path / "ran"
    file = tmp_path / f"{name}.py"
    file.write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    store_again(tmp_path, plugins=[str(file)], trainable=f"{name}:Thing")
    run(main, [command, "tiny"])  # there are no trials yet, which not every command accepts
    assert "1 problem" not in capsys.readouterr().err, "a file that can be read without its plugins is read"
    store_again(tmp_path, plugins=[str(file)], grid={"method": ["theirs"]})
    assert run(main, [command, "tiny"]) == 2
    said = capsys.readouterr().err
    assert "unknown method 'theirs'" in said and "code that a store names is not imported" in said
    assert f"--plugins {file}" in said and not ran.exists()
    run(main, [command, "tiny", "--plugins", str(file)])
    assert ran.exists(), "the user's own word"


def test_reports_show_names_and_values_as_text() -> None:
    blocks = [Heading(HOSTILE), Paragraph(HOSTILE), Items([HOSTILE]), Grid([HOSTILE], [[HOSTILE]]), Code(HOSTILE)]
    written = page(HOSTILE, blocks)
    assert "<script" not in written and written.count("&lt;script&gt;") == 8  # the title is there twice


MARKDOWN = [
    HOSTILE, "<img src=x onerror=alert(1)>", "![](http://there/x.png)", "![x] (http://there/x.png)",
    "[x](javascript:alert(1))", "<javascript:alert(1)>", "[x]: http://there\n\n[x] and ![x]", "a|b", "</td>",
    "```\n<script>\n```", "x](http://there) ![y", "~~~~", "```````", "<!-- x", "a\\](http://there)",
]  # fmt: skip


def html_of(written: str) -> str:
    """As a viewer shows Markdown that lets HTML through."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser.render(written)


@pytest.mark.parametrize("text", MARKDOWN)
def test_reports_in_markdown_show_names_and_values_as_text(text: str) -> None:
    grid = Grid([text, "b"], [[text, "1"], ["er_ace", f"2\n{text}"]], bold=frozenset({(0, 1)}))
    line = text.replace("\n", " ")
    blocks = [Heading(line), Paragraph(text), Items([line]), Code(text), Picture("a.png", line, b"", b""), grid]
    shown = html_of(markdown(line, [*blocks, Heading("End")]))
    tags = re.findall(r"<(\w+)", shown)
    assert set(tags) <= {"h1", "h2", "p", "ul", "li", "pre", "code", "table", "thead", "tbody", "tr", "th", "td",
                         "strong", "br", "img"}  # fmt: skip
    assert tags.count("td") == 4 and tags.count("th") == 2 and tags.count("pre") == 1 and "<h2>End</h2>" in shown
    assert shown.count("</td>") == 4 and "<!--" not in shown
    assert all('src="a.png"' in tag for tag in re.findall("<img[^>]*", shown)), "its own figure alone"


def test_ordinary_names_and_values_stay_as_they_are_in_markdown() -> None:
    text = "er_ace (NCM), betas [0.9, 0.999], p < 0.05, p <0.001, x > 1 & y: 3 ± 1 †, `--rerun changed`, a*b, #1 ~ 2"
    written = markdown("Sweep a_b", [Heading(text), Paragraph(text), Items([text]), Code(text), Grid([text], [[text]])])
    expected = (
        f"# Sweep a_b\n\n## {text}\n\n{text}\n\n- {text}\n\n```\n{text}\n```\n\n| {text} |\n| --- |\n| {text} |\n"
    )
    assert written == expected


def test_the_description_in_mlflow_holds_no_html(tmp_path: Path) -> None:
    study = load(sweep_file(tmp_path, description=f"{HOSTILE} ![](http://there/x.png)"))
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    run = SweepRun(store, study)
    run.begin()
    note = store.client.get_run(run.run_id).data.tags[Tag.NOTE]
    assert note.startswith("&lt;script>") and "<img" not in html_of(note)


def test_passwords_in_the_reason_of_a_failure_do_not_reach_the_record(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    spool = Spool(tmp_path / "spool")
    study = load(sweep_file(tmp_path))
    run = SweepRun(store, study)
    run.begin()
    courier = Courier(spool, store, study.name, lambda: run.run_id)
    spool.append("abc", START, name="one", params={"seed": 0})
    assert courier.deliver_all()
    spool.append("abc", END, status="FAILED", reason="no answer from postgresql://me:geheim@host/x?password=geheim")
    assert courier.deliver_all()
    (attempt,) = store.attempts("abc")
    assert attempt.reason == "no answer from postgresql://***@host/x?password=***"
    assert not [f for f in tmp_path.rglob("*") if f.is_file() and b"geheim" in f.read_bytes()]


def test_the_ui_listens_on_this_machine_alone_and_its_command_line_names_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def record(command: list[str], env: dict[str, str], **more: object) -> None:
        started.append((command, env))
        raise NotNowError("it need not serve here")

    Store(f"sqlite:///{tmp_path}/mlflow.db").open()
    monkeypatch.setattr(ui.subprocess, "Popen", record)
    with pytest.raises(NotNowError, match="need not"):
        ui.main(["--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db", "--port", "5999"])
    ((command, environment),) = started
    assert command[command.index("--host") + 1] == "127.0.0.1" and command[0] == sys.executable
    assert "mlflow.db" not in " ".join(command) and "mlflow.db" in environment["MLFLOW_BACKEND_STORE_URI"]
