"""What README.md and docs/sweeps.md say of sweep files, held to the schema and read as sweep files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pcr_ray.config import FIELDS
from pcr_ray.metrics import METRICS
from pcr_ray.study.load import load
from pcr_ray.study.schema import FIGURES, ReportSpec, Search, SweepFile

REPOSITORY = Path(__file__).parent.parent
README = (REPOSITORY / "README.md").read_text()
PAGE = (REPOSITORY / "docs" / "sweeps.md").read_text()
BASE: dict[str, Any] = {
    "name": "made", "fixed": {"dataset": "digits"}, "grid": {"method": ["pcr", "er", "ocm"], "seed": [0, 1, 2]}
}  # fmt: skip


def first_column(head: str) -> list[str]:
    table = re.search(rf"^{re.escape(head)} \|.*\n---.*\n((?:.* \| .*\n)+)", PAGE, re.MULTILINE)
    assert table, head
    return [line.split(" | ")[0].strip("`") for line in table[1].splitlines()]


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("Key", SweepFile.model_fields),
        ("Key of `report`", ReportSpec.model_fields),
        ("Metric", METRICS),
        ("Figure", FIGURES),
    ],
)
def test_the_page_on_sweep_files_has_every_key_metric_and_figure(head: str, names: Any) -> None:
    assert sorted(first_column(head)) == sorted(names)


def test_the_pages_search_has_every_key_and_is_a_sweep_files(tmp_path: Path) -> None:
    block = yaml.safe_load(PAGE.split("```yaml")[1].split("```")[0])
    assert block["search"].keys() == Search.model_fields.keys() - {"chosen"}
    read(tmp_path, {**BASE, "grid": {**BASE["grid"], "dataset": ["digits"]}, "fixed": {}, **block})


def snippets() -> list[str]:
    rows = README.split("You want to | write\n---|---\n")[1].split("\n\n")[0].splitlines()
    return [code for row in rows if (code := row.split(" | ")[1].split("`")[1])]


def read(folder: Path, content: dict[str, Any]) -> Any:
    (folder / "paper").symlink_to(REPOSITORY / "sweeps" / "paper")
    (folder / "made.yaml").write_text(yaml.safe_dump(content))
    return load(folder / "made.yaml")


@pytest.mark.parametrize("snippet", snippets())
def test_what_the_readme_says_a_sweep_file_can_say_is_read(snippet: str, tmp_path: Path) -> None:
    ((key, value),) = yaml.safe_load(snippet).items()
    content = {**BASE, "grid": dict(BASE["grid"])}
    if key in SweepFile.model_fields:
        content[key] = value
    else:
        assert key in FIELDS or key.startswith("params."), key
        content["grid"] |= {key: value} | ({"method": ["gmed"]} if key == "params.alpha" else {})
    study, plain = read(tmp_path, content), BASE["grid"]
    # PCR's authors have the paper's protocol: its three trials are the same in both.
    changed = {"preset": 15, "params.alpha": 6, "grids": 27, "exclude": 7}
    assert len(study.trials) == changed.get(key, len(plain["method"]) * len(plain["seed"]))


def test_the_readmes_sweep_file_is_the_one_that_is_there() -> None:
    shown = yaml.safe_load(README.split("```yaml")[1].split("```")[0])
    assert shown == yaml.safe_load((REPOSITORY / "sweeps" / "quickstart.yaml").read_text())
