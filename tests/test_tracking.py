"""The record: delivery once each, attempts, code beside numbers, runs of the first version; on a real MLflow store."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcr_ray.analysis import document, tables
from pcr_ray.analysis.results import collect
from pcr_ray.errors import InputError, NotNowError
from pcr_ray.execution.plan import make_plan
from pcr_ray.provenance import UNKNOWN, code_of
from pcr_ray.study import load as study_files
from pcr_ray.study.load import Study
from pcr_ray.study.resolve import resolve
from pcr_ray.text import redact
from pcr_ray.tracking import courier as courier_module
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import TRIAL_INPUT, Status, read_param
from pcr_ray.tracking.spool import Spool
from pcr_ray.tracking.store import Store
from pcr_ray.tracking.sweep_run import SweepRun
from pcr_ray.tracking.uri import tracking_uri
from tests.recorded import code, deliver

CONTENT: dict[str, Any] = {
    "name": "study",
    "fixed": {"dataset": "digits", "tasks": 2},
    "grid": {"method": ["pcr", "finetune"], "buffer": [50, 100], "seed": {"range": [0, 3]}},
}
TRIAL = resolve({"dataset": "digits"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture
def study() -> Study:
    return study_files.parse(CONTENT, "a file")


def all_runs(store: Store, kind: str = "trial") -> list[Any]:
    return list(store.client.search_runs([store.experiment], f"tags.`pcr_ray.kind` = '{kind}'"))


def test_delivering_the_same_events_again_changes_nothing(store: Store, study: Study, tmp_path: Path) -> None:
    deliver(store, study, tmp_path / "first")
    identity = next(iter(study.trials))
    run = store.trials([identity])[identity].run_id
    before = store.client.get_metric_history(run, "average_accuracy")
    deliver(store, study, tmp_path / "second")
    assert store.trials([identity])[identity].run_id == run
    assert store.client.get_metric_history(run, "average_accuracy") == before
    assert len(all_runs(store)) == len(study.trials) and len(all_runs(store, "sweep")) == 1


def test_only_the_trials_asked_for_are_read(store: Store, study: Study, tmp_path: Path, monkeypatch) -> None:
    """A store with other people's runs: none of them is looked at."""
    deliver(store, study, tmp_path / "ours")
    others = study_files.parse(CONTENT | {"name": "others", "grid": {"method": ["pcr"], "seed": [7, 8, 9]}}, "a file")
    deliver(store, others, tmp_path / "others")
    seen: list[Any] = []
    search = store._search
    monkeypatch.setattr(store, "_search", lambda text: (seen.append(run) or run for run in search(text)))
    found = store.trials(study.trials.keys())
    assert found.keys() == study.trials.keys() == {run.data.tags["pcr_ray.identity"] for run in seen}


def test_many_trials_are_found_in_few_requests(store: Store, study: Study, tmp_path: Path, monkeypatch) -> None:
    """Each goes through the whole store once; a third of a second among 20,000 runs."""
    deliver(store, study, tmp_path)
    asked = [f"{number:016x}" for number in range(1200)] + list(study.trials)
    texts: list[str] = []
    real = store.client.search_runs

    def counted(experiments: list[str], text: str, **more: Any) -> Any:
        texts.append(text)
        return real(experiments, text, **more)

    monkeypatch.setattr(store.client, "search_runs", counted)
    assert store.trials(asked).keys() == study.trials.keys()
    assert len(texts) == 3 + 1 and gc.isenabled()


def test_parameters_and_curves_survive_the_way_through_mlflow(store: Store, study: Study, tmp_path: Path) -> None:
    deliver(store, study, tmp_path)
    for identity, run in store.trials(study.trials.keys()).items():
        assert run.params == study.trials[identity].flat() and run.data == "0a0b0c0d"
        curves = store.curves([run], ["average_accuracy"])
        assert curves[run.run_id, "average_accuracy"] == store.history(run.run_id, "average_accuracy")
        assert len(curves[run.run_id, "average_accuracy"]) == 3


def test_runs_of_the_first_version_count(store: Store, study: Study, tmp_path: Path) -> None:
    """They have no form, no code and no input; made here as that version made them."""
    identity = next(iter(study.trials))
    tags = {"pcr_ray.kind": "trial", "pcr_ray.identity": identity, "pcr_ray.sweep": "study"}
    run = store.client.create_run(store.experiment, tags=tags, run_name="pcr seed=0").info.run_id
    store.client.log_metric(run, "final_accuracy", 50.0)
    for task in (1, 2):
        store.client.log_metric(run, "average_accuracy", 60.0 - task, step=task)
    store.client.set_terminated(run)
    plan = make_plan(study, store, tmp_path)
    assert plan.done == {identity} and plan.outdated == {identity: [UNKNOWN]}
    assert make_plan(study, store, tmp_path, rerun="changed").again == {identity}
    assert collect(study, store).curves[run, "average_accuracy"] == [59.0, 58.0]


def test_changed_code_is_told_apart_in_the_plan_the_report_and_the_tags(
    store: Store, study: Study, tmp_path: Path
) -> None:
    half = study_files.parse(CONTENT | {"grid": CONTENT["grid"] | {"seed": [0]}}, "a file")
    deliver(store, half, tmp_path / "before", **{"pcr_ray/methods/pcr.py": "12345678"})
    rest = study_files.parse(CONTENT | {"grid": CONTENT["grid"] | {"seed": [1, 2]}}, "a file")
    deliver(store, rest, tmp_path / "now")
    plan = make_plan(study, store, tmp_path)
    assert len(plan.done) == 9 and set(plan.outdated) == set(half.trials) and not plan.todo
    assert plan.outdated[next(iter(half.trials))] == ["pcr_ray/methods/pcr.py"]
    assert "9 done (3 of them with other code: pcr_ray/methods/pcr.py), 0 to run" in plan.describe()
    answer = collect(study, store)
    grid = tables.table(answer, answer.cells)
    assert all(tables.MIXED in text for row in grid.rows for text in row[1:])
    page = (document.write(answer, tmp_path / "report") / "report.html").read_text()
    assert "different code: pcr_ray/methods/pcr.py" in page
    codes = {run.data.tags["pcr_ray.code"] for run in all_runs(store)}
    assert "another" in codes and len(codes) == 3, "two methods now, and one of before"


def test_a_rerun_replaces_the_old_attempt_only_when_it_is_finished(store: Store, study: Study, tmp_path: Path) -> None:
    deliver(store, study, tmp_path / "old", **{"pcr_ray/methods/pcr.py": "12345678"})
    old = {i: run.run_id for i, run in store.trials(study.trials.keys()).items()}
    plan = make_plan(study, store, tmp_path, rerun="changed")
    assert plan.again == plan.todo.keys() == study.trials.keys() and not plan.done
    identity, trial = next(iter(study.trials.items()))
    spool = Spool(tmp_path / "new/spool")
    courier = Courier(spool, store, "study", lambda: "parent")
    spool.append(identity, "start", name="again", params=trial.flat(), code=code(trial), rerun=True)
    assert courier.deliver_all()
    assert store.trials([identity])[identity].run_id == old[identity], "the old one stands until the new one is done"
    spool.append(identity, "end", status="KILLED", reason="stopped")
    assert courier.deliver_all() and store.trials([identity])[identity].run_id == old[identity]
    spool.append(identity, "start", name="again", params=trial.flat(), code=code(trial), rerun=True)
    spool.append(identity, "end", status="FINISHED")
    assert courier.deliver_all()
    new = store.trials([identity])[identity]
    assert new.run_id != old[identity] and new.finished and len(store.attempts(identity)) == 2, "the same new run"
    assert store.client.get_run(old[identity]).data.tags["pcr_ray.superseded"] == new.run_id
    assert identity in make_plan(study, store, tmp_path).done


def test_failed_trials_are_left_alone_until_asked_for(store: Store, study: Study, tmp_path: Path) -> None:
    deliver(store, study, tmp_path, fail=2)
    plan = make_plan(study, store, tmp_path)
    assert list(plan.failed.values()) == ["it broke"] * 2 and not plan.todo
    for rerun in ("failed", "changed", "all"):
        again = make_plan(study, store, tmp_path, rerun=rerun)
        assert plan.failed.keys() <= again.todo.keys() and not again.failed
    assert len(make_plan(study, store, tmp_path, rerun="all").todo) == len(study.trials)


def test_a_half_written_line_at_the_end_of_a_spool_is_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append("a", "start", name="a", params={})
    with spool.events_file("a").open("a") as file:
        file.write('{"event": "task", "ti')
    assert [e["event"] for e in spool.events("a")] == ["start"]
    spool.append("a", "end", status="KILLED")
    assert [e["event"] for e in spool.events("a")] == ["start", "end"]


def spooled(folder: Path, *events: tuple[str, dict[str, Any]]) -> Spool:
    spool = Spool(folder)
    for name, content in events:
        spool.append("abc", name, **content)
    return spool


START = ("start", {"name": "one trial", "params": {"seed": 0}, "code": code(TRIAL), "rerun": False})


def courier_of(spool: Spool, store: Store) -> Courier:
    return Courier(spool, store, "s", lambda: "parent")


def test_a_run_that_was_deleted_or_belongs_to_another_store_is_made_anew(tmp_path: Path) -> None:
    first, second = (Store(f"sqlite:///{tmp_path / name}.db") for name in ("first", "second"))
    task = ("task", {"task": 1, "metrics": {"average_accuracy": 50.0}})
    spool = spooled(tmp_path / "spool", START, task)
    assert courier_of(spool, first).deliver_all()
    spool.append("abc", "task", task=2, metrics={"average_accuracy": 40.0})
    assert courier_of(spool, second).deliver_all()
    (run,) = all_runs(second)
    assert [m.step for m in second.client.get_metric_history(run.info.run_id, "average_accuracy")] == [1, 2]
    second.client.delete_run(run.info.run_id)
    spool.append("abc", "end", status="FAILED", reason="broke")
    courier = courier_of(spool, second)
    assert not courier.deliver_all() and courier.deliver_all(), "the second attempt begins anew"
    (again,) = all_runs(second)
    assert again.info.run_id != run.info.run_id and again.info.status == "FAILED" and again.data.params == {"seed": "0"}


def test_a_finished_run_is_not_demoted_by_an_older_interruption(store: Store, tmp_path: Path) -> None:
    old = spooled(tmp_path / "old", START, ("end", {"status": "KILLED", "reason": "stopped"}))
    new = spooled(tmp_path / "new", START, ("end", {"status": "FINISHED"}))
    assert courier_of(new, store).deliver_all() and courier_of(old, store).deliver_all()
    (run,) = all_runs(store)
    assert run.info.status == "FINISHED" and not old.pending()


def test_a_store_that_is_away_is_not_the_users_mistake_and_keeps_its_password() -> None:
    store = Store("http://someone:hunter2@127.0.0.1:9/")
    with pytest.raises(NotNowError, match=r"\*\*\*") as caught:
        store.open()
    assert "hunter2" not in str(caught.value) and caught.value.exit_code == 75


def test_a_locked_database_is_waited_for(store: Store, tmp_path: Path) -> None:
    """Another process holds SQLite's write lock for a few seconds, longer than SQLite itself waits."""
    store.open()
    file = tmp_path / "mlflow.db"
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sqlite3, sys, time\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
         "c.execute('begin exclusive'); print('held', flush=True); time.sleep(8); c.execute('rollback')", str(file)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline().strip() == "held"
    Store(store.uri).open()
    assert holder.wait(30) == 0, "it opened while the lock was held"


@pytest.mark.parametrize(
    "uri",
    ["http://me:secret@host/x", "postgresql+psycopg2://me:secret@host:5432/db", "https://host/?token=secret&a=1",
     "mysql://me:sec@ret@host/db", "postgresql://host/db?user=me&password=secret"],
)  # fmt: skip
def test_credentials_are_redacted(uri: str) -> None:
    shown = redact(f"cannot reach {uri}: refused")
    assert "secret" not in shown and "ret@" not in shown and "host" in shown and "refused" in shown


def test_the_default_store_is_absolute(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somewhere")
    assert tracking_uri() == "http://somewhere" and tracking_uri("sqlite:///a.db") == f"sqlite:///{tmp_path}/a.db"
    assert tracking_uri("postgresql+psycopg2://u:p@h/d") == "postgresql+psycopg2://u:p@h/d"


def test_a_query_is_no_part_of_the_databases_name(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(tracking_uri("sqlite:///mlflow.db?timeout=60"))
    assert store.missing_file == tmp_path / "mlflow.db"
    store.open()
    assert store.missing_file is None and (tmp_path / "mlflow.db").is_file()
    with pytest.raises(InputError, match="there is no folder"):
        tracking_uri("sqlite:///nowhere/mlflow.db?a=b/c")


@pytest.mark.parametrize(
    "uri",
    ["mlflow.db", "foo://host/x", "file:///tmp/x", "s3://bucket/x", "sqlite:mlflow.db", "sqlite://", "http://",
     "http:/localhost:5000", "c:/x/y"],
)  # fmt: skip
def test_a_tracking_uri_that_names_no_store_is_refused(uri: str) -> None:
    with pytest.raises(InputError, match="Expected: http://HOST:PORT"):
        tracking_uri(uri)


@pytest.mark.parametrize("uri", ["postgresql+nothing://me:secret@host/db", "mssql+nothing://me:secret@host/db"])
def test_a_database_driver_that_is_not_installed_is_the_users_to_correct(uri: str) -> None:
    with pytest.raises(InputError, match="Install the database's driver") as refused:
        Store(tracking_uri(uri)).open()
    assert "secret" not in str(refused.value)


def test_a_status_is_plain_text_in_the_spool() -> None:
    assert json.dumps({"status": Status.FINISHED}) == '{"status": "FINISHED"}'


def test_the_fingerprint_covers_what_can_change_a_number_and_nothing_else() -> None:
    sources = code_of(resolve({"method": "er_wa", "dataset": "cifar10"})).sources
    assert {"pcr_ray/learner.py", "pcr_ray/models.py", "pcr_ray/methods/er_wa.py", "pcr_ray/methods/er.py",
            "pcr_ray/datasets/cifar10.py", "pcr_ray/datasets/_cifar.py", "torch"} <= sources.keys()  # fmt: skip
    assert not {"pcr_ray/methods/pcr.py", "pcr_ray/config.py", "pcr_ray/text.py"} & sources.keys()


def test_comments_and_docstrings_do_not_change_a_fingerprint(tmp_path: Path) -> None:
    from pcr_ray.sources import digest

    versions = {
        "same.py": 'def f():\n    """One."""\n    return 1\n',
        "words.py": '# a comment\ndef f():\n    """Another."""\n    return 1  # one\n',
        "other.py": 'def f():\n    """One."""\n    return 2\n',
    }
    for name, text in versions.items():
        (tmp_path / name).write_text(text)
    digests = {name: digest(tmp_path / name) for name in versions}
    assert digests["same.py"] == digests["words.py"] != digests["other.py"]


def test_events_of_a_version_that_knew_no_code_are_delivered(store: Store, tmp_path: Path) -> None:
    start = ("start", {"name": "one trial", "params": {"seed": 0}})
    task = ("task", {"task": 1, "metrics": {"average_accuracy": 50.0}})
    courier = courier_of(spooled(tmp_path, start, task, ("end", {"status": "FINISHED"})), store)
    assert courier.deliver_all(), courier.trouble
    (run,) = all_runs(store)
    assert run.info.status == "FINISHED" and "pcr_ray.code" not in run.data.tags


def test_a_trial_continued_under_another_label_keeps_its_first_and_is_delivered(store: Store, tmp_path: Path) -> None:
    for number, label in enumerate((None, "paper")):
        name, content = START
        start = (name, content | {"params": {"seed": 0, "preset": label}})
        status = {"status": "FINISHED"} if number else {"status": "KILLED", "reason": "stopped"}
        courier = courier_of(spooled(tmp_path / str(number), start, ("end", status)), store)
        assert courier.deliver_all(), courier.trouble
    (run,) = all_runs(store)
    assert run.info.status == "FINISHED" and run.data.params["preset"] == "null"
    assert "pcr_ray.reason" not in run.data.tags, "that of its interruption is gone"


def test_numbers_of_two_codes_never_meet_in_one_run(store: Store, tmp_path: Path) -> None:
    """A trial fails, its method is mended, and it is run again."""
    name, content = START
    other = (name, content | {"code": code(TRIAL, **{"pcr_ray/methods/pcr.py": "12345678"})})
    task = ("task", {"task": 1, "metrics": {"average_accuracy": 10.0}})
    failed = spooled(tmp_path / "old", other, task, ("end", {"status": "FAILED", "reason": "a bug"}))
    assert courier_of(failed, store).deliver_all()
    tasks = [("task", {"task": t, "metrics": {"average_accuracy": 50.0 + t}}) for t in (1, 2)]
    assert courier_of(spooled(tmp_path / "new", START, *tasks, ("end", {"status": "FINISHED"})), store).deliver_all()
    runs = {run.info.status: run for run in all_runs(store)}
    assert store.history(runs["FINISHED"].info.run_id, "average_accuracy") == [51.0, 52.0]
    assert runs["FAILED"].data.tags["pcr_ray.superseded"] == runs["FINISHED"].info.run_id
    assert store.trials(["abc"])["abc"].run_id == runs["FINISHED"].info.run_id


def test_an_interrupted_rerun_of_all_goes_on_instead_of_beginning_anew(
    store: Store, study: Study, tmp_path: Path
) -> None:
    deliver(store, study, tmp_path)
    started = sorted(run.started for run in store.trials(study.trials.keys()).values())
    assert len(make_plan(study, store, tmp_path, rerun="all").again) == len(study.trials)
    since = (started[3] + started[4]) / 2
    left = make_plan(study, store, tmp_path, rerun="all", since=since).again
    assert len(left) == sum(s < since for s in started) < len(study.trials)


def test_a_trial_that_waits_for_its_delivery_is_not_run_again(store: Store, study: Study, tmp_path: Path) -> None:
    deliver(store, study, tmp_path)
    waiting = set(list(study.trials)[:2])
    plan = make_plan(study, store, tmp_path, spooled=waiting, rerun="all")
    assert plan.done == waiting and plan.again == study.trials.keys() - waiting


def test_a_crash_between_a_new_run_and_its_parameters_leaves_nothing_out(
    store: Store, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was just made is spared requests; one that is found again is not."""
    identity = next(iter(study.trials))
    spool, parent = Spool(tmp_path / "spool"), SweepRun(store, study)
    courier = Courier(spool, store, study.name, lambda: parent.run_id)
    flat = study.trials[identity].flat()
    spool.append(identity, "start", name="one", params=flat, code=code(study.trials[identity]), data="0a")
    with monkeypatch.context() as broken:
        broken.setattr(courier, "_begin", lambda *_: 1 / 0)
        assert not courier.deliver_all()
    assert courier.deliver_all()
    (found,) = all_runs(store)
    assert {k: read_param(v) for k, v in found.data.params.items()} == flat
    assert [(i.dataset.name, i.dataset.digest) for i in found.inputs.dataset_inputs] == [
        ("digits", "0a"), (TRIAL_INPUT, identity)
    ]  # fmt: skip
    assert found.info.status == "RUNNING" and found.data.tags["pcr_ray.sweep.study"] == "yes"


def test_delivery_gives_way_while_events_come_and_only_then(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of its own: an event whenever one is waited for, for a while, or none."""
    courier = Courier(Spool(tmp_path / "spool"), store, "study", lambda: "")
    now, last = 100.0, 0.0  # the last event comes at `last`

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now <= last:
            courier.wake()

    def rest(worked: float) -> float:
        before = now
        courier._give_way(worked)
        return now - before

    monkeypatch.setattr(courier_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(courier._stop, "wait", wait)
    assert rest(0.02) == 0.0, "no event yet"
    courier.wake()
    last = 1000.0
    assert rest(0.02) == pytest.approx(0.18), "nine times the work"
    assert rest(1.0) == pytest.approx(0.5), "not for long"
    last = now + 2 * courier_module.BUSY
    assert 0.2 <= rest(1.0) < 0.4, "until Tune is quiet"
    last = 1000.0
    courier.wake()
    courier._stop.set()
    assert rest(1.0) == 0.0, "at the end all is delivered"
