"""Whatever a user writes: one clear message and exit code 2, never a traceback, a hang or a password on the screen."""

from __future__ import annotations

import os
import signal
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcr_ray.cli import main
from pcr_ray.config import FIELDS, TrialConfig
from pcr_ray.console import run
from pcr_ray.datasets import DATASETS
from pcr_ray.errors import InputError, PcrRayError
from pcr_ray.execution.options import RunOptions
from pcr_ray.methods import METHODS
from pcr_ray.study.load import load
from pcr_ray.study.schema import SweepFile
from pcr_ray.text import redact
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.uri import tracking_uri
from pcr_ray.train import parser, trial_config

# Of CPU, which a busy machine does not change; and by the clock, for what waits instead.
LIMITS = {(signal.ITIMER_PROF, signal.SIGPROF): 10, (signal.ITIMER_REAL, signal.SIGALRM): 120}
SECRET = "geheim"


@contextmanager
def no_hang() -> Iterator[None]:
    def late(number: int, _: object) -> None:
        raise AssertionError(f"took too long ({signal.Signals(number).name})")

    before = {number: signal.signal(number, late) for _, number in LIMITS}
    for (timer, _), seconds in LIMITS.items():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in LIMITS:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def refused(file: Path, text: str | bytes, *overrides: str) -> str:
    """What is said about a sweep file that must not be accepted."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with no_hang(), pytest.raises(InputError) as raised:
        load(file, list(overrides))
    assert len(str(raised.value)) < 40_000
    return str(raised.value)


def aliases(levels: int, merge: bool = False) -> str:
    """Each level is ten times the one before it."""
    first = "&a0 {k: 1}" if merge else "&a0 [x]"
    form = "&a%d {<<: [%s]}" if merge else "&a%d [%s]"
    later = [form % (i, ", ".join([f"*a{i - 1}"] * 10)) for i in range(1, levels)]
    return f"[{', '.join([first, *later])}]"


ODD = {
    "hexadecimal": "0x" + "f" * 5000, "octal": "0" + "7" * 9000, "sexagesimal": "1" + ":59" * 3000,
    "decimal": "9" * 5000, "binary": "-0b" + "1" * 20000, "no int": "!!int ''", "no digits": "!!int _",
    "no float": "!!float ''", "no bool": "!!bool maybe", "no time": "!!timestamp foo",
    "no date": "!!timestamp 2001-99-99",
    "python": "!!python/object/apply:os.system ['touch evaluated']", "NUL": '"a\\0b"', "surrogate": '"\\ud800"',
    "aliases": aliases(9), "merged aliases": aliases(9, merge=True), "itself": "&r [*r]",
    "its own key": "&r {paper: *r}",
    "deep": "[" * 300 + "]" * 300, "long": "x" * 300_000, "many": str([*range(3_000), 0]),
}  # fmt: skip
PLACES = [
    "{}", "? {}\n: 3", "name: {}", "description: {}", "fixed: {}", "fixed: {{buffer: {}}}", "fixed: {{folder: {}}}",
    "fixed: {{params: {}}}", "fixed: {{? {} : 3}}", "grid: {}", "grid: {{method: {}}}", "grid: {{buffer: [{}]}}",
    "grid: {{seed: {{range: [0, {}]}}}}", "grids: [{}]", "exclude: [{{seed: {}}}]", "adjust: [{{when: {}, set: {{}}}}]",
    "retries: {}", "resources: {{cpu: {}}}", "trainable: {}", "presets: [{}]", "report: {}", "report: {{x: {}}}",
    "report: {{paper: {}}}", "report: {{paper: [{{value: {}}}]}}", "report: {{paper: [{{value: 1, preset: {}}}]}}",
]  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("place", PLACES)
def test_odd_values_anywhere_in_a_sweep_file_are_one_message(place: str, kind: str, tmp_path: Path) -> None:
    before = "" if place.startswith(("{", "?", "name")) else "name: odd\n"
    grid = "" if place.startswith(("{", "grid:")) else "grid: {seed: [0, 1]}\n"
    refused(tmp_path / "odd.yaml", f"{before}{grid}{place.format(ODD[kind])}\n")
    assert [p.name for p in tmp_path.iterdir()] == ["odd.yaml"] and not Path("evaluated").exists()


def test_the_line_of_a_bad_value_is_named(tmp_path: Path) -> None:
    text = "name: a\ngrid:\n  seed: [0]\nretries: !!int ''\n"
    assert "'' is not a valid int, line 4" in refused(tmp_path / "a.yaml", text)
    assert "an alias to what contains it, line 3" in refused(tmp_path / "a.yaml", "name: a\ngrid:\n  seed: &s [*s]\n")
    assert "more than 64 digits, line 1" in refused(tmp_path / "a.yaml", f"name: 0x{'f' * 99}\n")


def test_aliases_within_reason_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "name: a\nfixed: &f {dataset: digits}\ngrids: [{<<: &g {seed: [0]}}, {seed: [1]}]\n"
    )
    assert len(load(tmp_path / "a.yaml").trials) == 2


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"PK\x03\x04" + bytes(99), b"value,seed\n1,2,3\n", b"\x1f\x8b\x08"]
)
def test_numbers_of_the_paper_are_read_from_csv_alone(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "paper.zip").write_bytes(content)
    text = "name: a\ngrid: {seed: [0]}\nreport: {paper: paper.zip}\n"
    assert "report.paper: paper.zip" in refused(tmp_path / "a.yaml", text)


def test_numbers_of_the_paper_may_come_from_a_spreadsheet(tmp_path: Path) -> None:
    (tmp_path / "paper.csv").write_bytes(b"\xef\xbb\xbfmethod,value\r\ner,50\r\n")
    (tmp_path / "a.yaml").write_text("name: a\ngrid: {seed: [0]}\nreport: {paper: paper.csv}\n")
    assert load(tmp_path / "a.yaml").spec.report.paper == [{"method": "er", "value": 50}]


def test_a_pipe_a_device_and_a_folder_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device", "."):
        with no_hang(), pytest.raises(InputError, match="cannot be read"):
            load(tmp_path / name)
        text = f"name: a\ngrid: {{seed: [0]}}\nreport: {{paper: {name}}}\n"
        assert "cannot be read as CSV" in refused(tmp_path / "a.yaml", text)


# --- random sweep files -------------------------------------------------------------------------------------------

SLOWLY = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
words = st.sampled_from([
    *FIELDS, *METHODS.names(), *DATASETS.names(), *SweepFile.model_fields, "params.alpha", "params", "range", "when",
    "set", "paper", "auto", "value", "preset", "x", "series", "", "-1", "1e-3", "%", "[red]", "{eval: 1}", "../..", "/",
    "~",
])  # fmt: skip
scalars = words | st.text(max_size=8) | st.integers() | st.floats() | st.booleans() | st.none() | st.dates()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(scalars, inner, max_size=4), max_leaves=6
)
sensible = st.fixed_dictionaries(
    {"name": st.just("a"), "grid": st.just({"seed": [0, 1], "method": ["pcr", "er"]})},
    optional={key: values for key in SweepFile.model_fields if key not in ("name", "grid")},
)
files = sensible | st.dictionaries(st.sampled_from(list(SweepFile.model_fields)) | words, values, max_size=6) | values


def says_what_is_wrong(file: Path, overrides: list[str]) -> None:
    """A sweep file loads and can be written again, or is refused."""
    with no_hang():
        try:
            study = load(file, overrides)
        except InputError:
            return
        assert yaml.safe_load(study.to_yaml())["name"] == study.name


@settings(max_examples=400, **SLOWLY)
@given(content=files)
def test_any_content_is_accepted_or_refused(content: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.dump(content, Dumper=yaml.SafeDumper, allow_unicode=True), errors="replace")
    says_what_is_wrong(tmp_path / "a.yaml", [])


@settings(max_examples=150, **SLOWLY)
@given(content=st.binary(max_size=60) | st.text("{}[]&*!<>:-?,'\"#|% \n\tabn01", max_size=60).map(str.encode))
def test_any_bytes_are_accepted_or_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(content)
    says_what_is_wrong(tmp_path / "a.yaml", [])


@settings(max_examples=150, **SLOWLY)
@given(key=st.lists(words, min_size=1, max_size=3).map(".".join) | st.text(max_size=5), value=values | st.text())
def test_any_override_is_accepted_or_refused(key: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nfixed: {dataset: digits}\ngrid: {seed: [0]}\ngrids: [{method: [er]}]\n")
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True)
    says_what_is_wrong(tmp_path / "a.yaml", [f"{key}={text}"])


# --- command lines ------------------------------------------------------------------------------------------------

TRIAL = ["--" + name.replace("_", "-") for name in TrialConfig.model_fields]
RUN = ["--" + name.replace("_", "-") for name in RunOptions.__dataclass_fields__]
argument = (
    words | st.text(max_size=10) | st.integers().map(str) | st.floats().map(str)
    | st.sampled_from(["9" * 5000, "1" + "0" * 30, "-0", "\udcff", "a\0b", "x" * 5000, "~nobody/x", "http://["])
)  # fmt: skip


def code_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    with no_hang():
        try:
            code = run(main, arguments)
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out, said.err
    return code


@settings(max_examples=120, **SLOWLY)
@given(given=st.lists(st.tuples(st.sampled_from(TRIAL), argument), min_size=1, max_size=4))
def test_any_trial_on_the_command_line_is_accepted_or_refused(given: list[tuple[str, str]]) -> None:
    with no_hang():
        try:
            trial_config(parser().parse_args([word for pair in given for word in pair]))
        except (InputError, SystemExit):
            return


@settings(max_examples=120, **SLOWLY)
@given(given=st.lists(st.tuples(st.sampled_from(RUN), argument), max_size=3), file=argument)
def test_any_options_of_a_sweep_without_a_file_are_exit_code_2(
    given: list[tuple[str, str]], file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert code_of(["sweep", f"no-{file}", *(word for pair in given for word in pair)], capsys) in (0, 2)  # 0: --help


@settings(max_examples=100, **SLOWLY)
@given(
    scheme=st.sampled_from(["http", "https", "sqlite", "postgresql", "mysql+pymysql", "file", "", "foo"]),
    mark=st.sampled_from(["://", "://", ":/", ":", ""]),
    password=st.text(string.punctuation + "äb \t", max_size=4).map(lambda text: SECRET + text + SECRET),
    rest=st.sampled_from(["", "[", "[::1", "host", "host:", "host:x", "host:99999", "ho st", ":1", "\0", "/x"]),
)
def test_any_tracking_uri_is_accepted_or_refused_without_its_password(
    scheme: str, mark: str, password: str, rest: str
) -> None:
    try:
        uri = tracking_uri(f"{scheme}{mark}me:{password}@{rest}")
    except InputError as error:
        assert SECRET not in str(error)
    else:
        assert SECRET not in str(Store(uri)) and SECRET not in redact(f"nobody answers at {uri}")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:top geheim@host/db", "postgresql://***@host/db"),
        ("postgresql+psycopg2:/me:geheim@host/db", "***@host/db"),
        ("me:geheim@host/db", "***@host/db"),
        ("mssql://host/db?password=top geheim", "mssql://host/db?password=***"),
        ("mssql:/?odbc_connect=UID%3Dme%3BPWD%3Dgeheim", "mssql:/?odbc_connect=UID%3Dme%3BPWD%3D***"),
    ],
)  # fmt: skip
def test_a_tracking_uri_that_is_no_uri_is_refused_without_its_password(uri: str, shown: str) -> None:
    with pytest.raises(InputError) as caught:
        tracking_uri(uri)
    assert f"tracking URI '{shown}': " in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--threads", "1" + "0" * 30], ["bench", "--threads", "1" + "0" * 30],
        ["train", "--data-root", "\udcff"], ["train", "--checkpoint", "a\0b"], ["train", "--json", "x" * 5000],
        ["train", "--data-root", "~nobody-of-this-name/x"], ["train", "--device", "cuda:x"], ["sweep", "a\0b"],
        ["sweep", "\udcff.yaml"], ["sweep", "x" * 5000], ["report", "a\0b"], ["report", "x" * 5000 + ".yaml"],
        ["ui", "--port", "1" + "0" * 30], ["datasets", "fetch", "\udcff"], ["methods", "\0"], ["\udcff"],
        ["submit", "slurm", "x" * 5000, "--cpus-per-node", "2"], ["job", "status", "slurm/\0"],
        ["report", "x", "--tracking-uri", "http://["], ["report", "x", "--tracking-uri", "http://h:x/"],
        ["report", "x", "--tracking-uri", "sqlite:///"], ["report", "x", "--tracking-uri", "foo://h"],
        ["report", "x", "--tracking-uri", f"postgresql+nobody://me:{SECRET}@h/x"],
        ["report", "x", "--tracking-uri", f"mssql+pyodbc://me:{SECRET}@h/x"],
        ["report", "x", "--tracking-uri", f"mysql://me:{SECRET}@h/x"],
    ],
    ids=lambda arguments: " ".join(arguments)[:50].encode("ascii", "backslashreplace").decode(),
)  # fmt: skip
def test_a_word_that_cannot_be_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with no_hang():
        try:
            code = run(main, arguments)
        except SystemExit as ended:
            code = ended.code
    said = capsys.readouterr()
    assert code == 2 and said.err.strip() and "Traceback" not in said.err, said.err
    assert SECRET not in said.err and not list(tmp_path.iterdir())


def test_a_database_of_another_version_is_told(tmp_path: Path) -> None:
    import sqlite3

    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    store.open()
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '123456789abc'")
    with no_hang(), pytest.raises(PcrRayError, match="Another version of MLflow made it"):
        Store(f"sqlite:///{tmp_path}/./mlflow.db").open()


def test_a_mistake_of_ours_is_told_without_passwords(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(argv: object) -> int:
        raise ValueError(f"postgresql://me:{SECRET}@host/x")

    assert run(broken, []) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and "ValueError" in said and SECRET not in said
