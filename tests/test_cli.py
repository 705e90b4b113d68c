"""The pcr-ray command: what it lists, how it answers mistakes, and docs that are held to the code."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import pytest

from pcr_ray import ui
from pcr_ray.cli import COMMANDS, main
from pcr_ray.config import TrialConfig
from pcr_ray.console import Screen, run
from pcr_ray.datasets import DATASETS
from pcr_ray.listing import methods_markdown, presets_markdown
from pcr_ray.methods import METHODS
from pcr_ray.study.presets import PRESETS
from tests.sweeping import environment, sweep_file

REPOSITORY = Path(__file__).parent.parent


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0 and f"pcr-ray {command}" in capsys.readouterr().out


def test_a_reader_of_the_output_that_has_gone_ends_no_command() -> None:
    code = (
        "import sys; from pcr_ray.console import console, run\n"
        "def main(argv):\n    console.print('one')\n    console.print('two')\n    return 75\n"
        "sys.exit(run(main, []))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (75, "")


def test_an_unknown_command_suggests_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["swep"]) == 2
    assert "did you mean 'sweep'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --learning-rate 0.1", "unknown option --learning-rate (did you mean --lr?)"),
        ("train --bufer=3", "unknown option --bufer (did you mean --buffer?)"),
        ("train --lr", "argument --lr: expected one argument"),
        ("train digits", "unexpected argument 'digits'"),
        ("sweep", "the following arguments are required: FILE"),
        ("new", "the following arguments are required: method|dataset, NAME"),
        ("job", "the following arguments are required: status|logs|cancel, HANDLE"),
        ("sweep a.yaml --rerun most", "argument --rerun: invalid choice: 'most'"),
        ("submit slurm a.yaml --cpus-per-node 1 --tiem 1", "unknown option --tiem (did you mean --time?)"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_options_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, words.split()) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.count("\n") == 1 and message in shown.err and "--help" in shown.err


def test_a_trainable_in_the_working_folder_is_found_by_the_installed_command(tmp_path: Path) -> None:
    """Which is a file elsewhere: that one's folder is on Python's path, not the working one."""
    script = tmp_path / "bin/pcr-ray"
    script.parent.mkdir()
    script.write_text("from pcr_ray.cli import entry\nentry()\n")
    (tmp_path / "mine.py").write_text("class Mine: pass\n")
    sweep_file(tmp_path, trainable="mine:Mine")
    command = [sys.executable, script, "sweep", "tiny.yaml", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "4 to run" in done.stdout, done.stdout + done.stderr


def test_a_port_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["ui", "--port", "70000"]) == 2
    assert "--port 70000: needs a number from 1 to 65535" in capsys.readouterr().err


def test_lists_name_all_methods_and_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0 and main(["datasets"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", shown) for name in [*METHODS.names(), *DATASETS.names()])


def test_a_method_is_described_by_name_and_a_misspelt_one_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "gmed", "pcr"]) == 0
    shown = capsys.readouterr().out
    assert "Jin et al." in shown and "`params.beta` (default 0.001" in shown and "Lin et al." in shown
    for typed, meant in (("gmde", "gmed"), ("PCR", "pcr"), ("ER-ACE", "er_ace"), ("DER++", "derpp")):
        assert run(main, ["methods", typed]) == 2
        assert f"did you mean '{meant}'" in capsys.readouterr().err


@pytest.mark.parametrize(("page", "written"), [("methods.md", methods_markdown), ("presets.md", presets_markdown)])
def test_a_page_says_what_the_code_says(page: str, written: Callable[[], str]) -> None:
    file = REPOSITORY / "docs" / page
    before, now = file.read_text() if file.exists() else "", written()
    if before != now:
        file.write_text(now)
    assert before == now, f"docs/{page} was stale and has been written anew: look at it and commit it"


@pytest.mark.parametrize("method", list(METHODS), ids=lambda m: m.name)
def test_every_method_and_parameter_is_documented(method: type) -> None:
    assert method.title and method.idea
    assert all(field.description for field in method.Params.model_fields.values())


def test_help_lists_the_choices_of_every_field(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, field in TrialConfig.model_fields.items():
        if get_origin(field.annotation) is Literal:
            assert f"[{', '.join(get_args(field.annotation))}]" in shown, name
    for names in (METHODS.names(), DATASETS.names(), list(PRESETS)):
        assert ", ".join(names) in shown
    assert "pcr-ray methods NAME" in shown and "pcr-ray presets NAME" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_completes_commands_options_and_names(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    assert main(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    asked = {
        "pcr-ray swe": "sweep", "pcr-ray sweep a.yaml --dry": "--dry-run", "pcr-ray train --method pcr_": "pcr_c",
        "pcr-ray methods gm": "gmed", "pcr-ray sweep a.yaml --rerun f": "failed", "pcr-ray sweep a": "",
        "pcr-ray submit sl": "slurm", "pcr-ray submit slurm x.yaml --part": "--partition", "pcr-ray job lo": "logs",
        "pcr-ray submit local s": "", "pcr-ray job logs l": "",
    }  # fmt: skip
    lines = [f"source {tmp_path / 'script'}"]
    if shell == "zsh":
        lines = ["autoload -U compinit; compinit -u", *lines, "setopt ksh_arrays shwordsplit"]
    for words in asked:
        lines.append(f'COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _pcr_ray; echo "[${{COMPREPLY[*]}}]"')
    done = subprocess.run([shell, "-c", "\n".join(lines)], capture_output=True, text=True, check=False, cwd=tmp_path)
    shown = [line.strip("[]").split() for line in done.stdout.splitlines()]
    if shell == "zsh":  # it compares with what was typed only when a key is pressed
        shown = [[w for w in found if w.startswith(words.split()[-1])] for words, found in zip(asked, shown)]
    assert shown == [answer.split() for answer in asked.values()], done.stdout + done.stderr


def test_a_terminal_breaks_lines_between_words_and_a_pipe_gets_them_whole() -> None:
    link = "http://127.0.0.1:5000/#/" + 60 * "x"
    text = f"  read it at {link} and then go on"
    for terminal, lines in ((True, ["  read it at", f"  {link}", "  and then go on"]), (False, [text])):
        out = io.StringIO()
        screen = Screen(file=out, width=40, force_terminal=terminal, color_system=None)
        screen.print(text, soft_wrap=True, markup=False)
        screen.print(text, markup=False)
        assert out.getvalue().splitlines() == lines + lines


def test_help_names_commands_unbroken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in range(60, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit):
            main(["sweep", "--help"])
        assert "pcr-\n" not in capsys.readouterr().out


def test_the_ui_is_waited_for_on_this_machine_whatever_proxy_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of its first use
    monkeypatch.setattr(ui, "PATIENCE", 20)
    running: Any = SimpleNamespace(poll=lambda: None)
    (tmp_path / "log").touch()
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ui._wait(running, f"http://127.0.0.1:{server.server_port}", tmp_path / "log")
        server.shutdown()


def test_output_that_cannot_be_written_is_no_success() -> None:
    """Less than a buffer of it, which Python writes last of all."""
    code = """
import sys
from pcr_ray import console

def main(argv):
    sys.stdout.write("a")
    return 0

console.leave(console.run(main, []))
"""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "No space left on device" in done.stderr
