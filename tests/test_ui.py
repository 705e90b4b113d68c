"""`pcr-ray ui` on the record of real sweeps: what it prints, and in Chromium that every link opens on something."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pcr_ray.tracking import views
from tests.sweeping import environment, run_sweep, sweep_file

pytestmark = pytest.mark.slow

# As root it needs --no-sandbox; the others keep it from looking for hosts that are not there.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 120_000  # ms for a page, on a machine that has other things to do
QUESTION = "Does PCR lead?"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Two sweeps on digits. The second one finds its trials done by the first."""
    folder = tmp_path_factory.mktemp("ui")
    sweep_file(folder, report={"question": QUESTION})
    for name, seeds in (("tiny", "[0,1]"), ("other", "[0]")):
        done = run_sweep(folder, root, "--set", f"name={name}", "--set", f"grid.seed={seeds}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "2 done, 0 to run" in done.stdout
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def links(record: Path) -> Iterator[dict[str, str]]:
    """What `pcr-ray ui tiny` prints once it serves, by name; stopped by Ctrl-C it ends quietly."""
    command = [sys.executable, "-u", "-m", "pcr_ray", "ui", "tiny", "--port", str(free_port())]
    before = set(record.iterdir())
    server = subprocess.Popen(
        command, cwd=record, env=environment(record), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert server.stdout
    lines: list[str] = []
    for line in server.stdout:
        lines.append(line)
        if "all runs:" in line:
            break
    found = dict(m.groups() for line in lines if (m := re.fullmatch(r"  (.+?): +(http\S+)\n", line)))
    assert found, "".join(lines)
    yield found
    server.send_signal(signal.SIGINT)
    rest = server.communicate(timeout=60)[0]
    assert server.returncode == 0 and rest.split() == ["stopped"], rest
    assert set(record.iterdir()) == before


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium is installed here")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed here")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A new visitor, to whom nothing but this machine answers."""
    context = browser.new_context(viewport={"width": 1500, "height": 1400})
    context.route(
        lambda url: not url.startswith(("http://127.0.0.1", "data:", "blob:")), lambda route: route.abort()
    )  # fmt: skip
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


def see(page: Any, *texts: str) -> None:
    """All of these come into sight."""
    for text in texts:
        page.get_by_text(text).first.wait_for()


def test_it_prints_links_to_everything_about_a_sweep(links: dict[str, str]) -> None:
    assert list(links) == [
        "trials as charts", "trials as a table", "the answer", "the report", "first seeds compared", "all runs"
    ]  # fmt: skip


def test_the_charts_show_the_sweeps_trials_grouped_by_method(links: dict[str, str], page: Any) -> None:
    page.goto(links["trials as charts"])
    see(page, "4 matching runs", "Group by: method", "Answer", "pcr 0 (method, seed)", "er 1 (method, seed)")
    page.locator(".js-plotly-plot").nth(2).wait_for()
    bars = page.locator(".js-plotly-plot").first
    assert bars.locator("g.bars path, g.points path").count() == 2, "one bar per method"


def test_the_table_shows_the_sweeps_trials(links: dict[str, str], page: Any) -> None:
    page.goto(links["trials as a table"])
    see(page, "4 matching runs", "pcr 0 (method, seed)", "final_accuracy")


def test_a_sweep_that_reused_all_its_trials_shows_them(links: dict[str, str], page: Any, record: Path) -> None:
    server, _, rest = links["trials as charts"].partition("#")
    experiment = rest.split("/")[2]
    page.goto(server + views.charts_page(experiment, "other"))
    see(page, "2 matching runs", "pcr 0 (method, seed)", "er 0 (method, seed)")


def test_a_sweeps_page_tells_what_it_found_and_leads_to_its_trials(links: dict[str, str], page: Any) -> None:
    page.goto(links["the answer"])
    answer = page.get_by_text("is ahead of").first  # two seeds are too few to say that it leads
    answer.wait_for()
    heading, fold = page.get_by_text("Description", exact=True).first, page.get_by_text("Show more").first
    places = [thing.bounding_box()["y"] for thing in (heading, answer, fold)]
    assert places == sorted(places), "the answer is seen without unfolding"
    see(page, "trials_done", "leading_final_accuracy", "pcr-ray sweep", "digits (", "er 1 (method, seed)")
    fold.click()
    see(page, QUESTION)
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="its trials as charts").first.click()
    see(opened.value, "4 matching runs", "Group by: method")


def test_the_report_is_shown_in_its_sweeps_page(links: dict[str, str], page: Any) -> None:
    page.goto(links["the report"])
    page.frame_locator("iframe").get_by_text(QUESTION).first.wait_for()


def test_the_first_seeds_are_compared_with_parallel_coordinates(links: dict[str, str], page: Any) -> None:
    page.goto(links["first seeds compared"])
    see(page, "Comparing 2 Runs from 1 Experiment", "Parallel Coordinates Plot")
    page.locator(".js-plotly-plot .parcoords, .js-plotly-plot g.parcoords").first.wait_for()


def test_all_runs_are_the_sweeps_with_their_trials(links: dict[str, str], page: Any) -> None:
    page.goto(links["all runs"])
    see(page, "tiny", "other", "6 matching runs")


def test_a_wrong_folder_is_told_and_gets_no_record(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pcr_ray", "ui"]
    said = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert said.returncode == 2 and str(tmp_path / "mlflow.db") in said.stderr and "--tracking-uri" in said.stderr
    assert not list(tmp_path.iterdir())
