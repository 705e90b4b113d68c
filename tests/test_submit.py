"""What `pcr-ray submit` would submit: quoting, options, templates, refusals. Nothing is started but a local sweep."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from pcr_ray import cli
from pcr_ray.clusters import BACKENDS
from pcr_ray.clusters.local import KEEPER
from pcr_ray.console import run
from tests.sweeping import REPOSITORY, environment, histories, run_sweep, sweep_file, wait_for

SECRET = "geheim"
SLURM = ["slurm", "--cpus-per-node", "2"]
EVERYWHERE = [SLURM, ["ray", "http://h:8265"], ["local"], ["kuberay", "--image", "i", "--storage-claim", "c"]]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def submit(folder: Path, *words: str) -> Done:
    """`pcr-ray ...` as typed in a folder, in this process: it is the imports that take time."""
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(cli.main, words)
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    finally:
        os.chdir(before)
    return Done(code, out.getvalue(), err.getvalue())


def printed(folder: Path, *words: str) -> str:
    done = submit(folder, "submit", *words, "--print")
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_bash_reads(text: str) -> list[str]:
    """The words that the shell makes of a piece of a script."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder whose name a shell would take apart."""
    folder = tmp_path / "a b'c $(touch broken) %j;&"
    folder.mkdir()
    sweep_file(folder)
    return folder


def test_a_slurm_script_is_valid_bash_and_keeps_odd_names_whole(odd: Path) -> None:
    script = printed(
        odd, *SLURM, "tiny.yaml", "--storage", "my store", "--set", "grid.seed=[0, 1]", "--data-root", "$x`y`"
    )  # fmt: skip
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    value = {n: as_bash_reads(v)[0] for n, v in re.findall(r"^(folder|home)=(.*)$", script, re.M)}
    assert value == {"folder": str(odd), "home": f"{odd}/runs/tiny"}
    (watched,) = re.findall(r"stat --format='%n %y' (.*) 2>", script)
    assert as_bash_reads(watched) == [f"{odd}/runs/tiny/.progress", f"{odd}/runs/tiny.search/.progress"]
    (words,) = re.findall(r"-m pcr_ray\.sweep (.*) --address \"\$PCR_ADDRESS\" &", script)
    assert as_bash_reads(words) == [
        f"{odd}/tiny.yaml", "--set", "grid.seed=[0, 1]", "--storage", f"{odd}/my store", "--data-root", f"{odd}/$x`y`"
    ]  # fmt: skip
    assert f'#SBATCH --output="{str(odd).replace("%", "%%")}/runs/tiny/slurm-%j.log"' in script
    assert not list(odd.parent.rglob("broken"))
    assert "RAY_AUTH_TOKEN=$(" in script


def test_every_option_of_slurm_is_in_the_script(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    script = printed(
        tmp_path, "slurm", "tiny.yaml", "--nodes", "4", "--gpus-per-node", "2", "--cpus-per-node", "16",
        "--time", "24:00:00", "--partition", "gpu,long", "--account", "me", "--qos", "high", "--constraint", "a100&ib",
        "--sbatch=--mem=64G", "--setup", "module load cuda", "--setup", "source x/bin/activate",
        "--signal-seconds", "300", "--python", "/opt/py 3",
    )  # fmt: skip
    directives = re.findall(r"^#SBATCH (.*)$", script, re.M)
    assert set(directives) > {
        "--job-name=pcr-ray-tiny", "--nodes=4", "--gpus-per-node=2", "--cpus-per-task=16", "--time=24:00:00",
        "--partition=gpu,long", "--account=me", "--qos=high", '--constraint="a100&ib"', "--mem=64G",
        "--signal=B:USR1@300", "--requeue", "--open-mode=append",
    }  # fmt: skip
    assert "\nmodule load cuda\nsource x/bin/activate\n}" in script
    (exported,) = re.findall(r"^export (PCR_PYTHON=.*) PCR_ADDRESS=$", script, re.M)
    assert as_bash_reads(exported) == ["PCR_PYTHON=/opt/py 3", "PCR_CPUS=16", "PCR_GPUS=2"]
    assert not re.findall(r"@[a-z_]+@", script)


def test_gpus_may_have_a_type_and_ray_is_told_their_number(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    for words, directives, number in (
        (["--gpus-per-node", "a100:2"], ["--gpus-per-node=a100:2"], "2"),
        (["--gpus-per-node", "0", "--sbatch=--gres=tmpfs:10"], ["--gres=tmpfs:10"], "0"),
    ):
        script = printed(tmp_path, *SLURM, "tiny.yaml", *words)
        assert re.findall(r"^#SBATCH (--g.*)$", script, re.M) == directives
        assert re.findall(r" PCR_GPUS=(\S+) ", script) == [number]


def test_the_same_command_prints_the_same_bytes(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    for words in (SLURM, ["ray", "http://h:8265"], ["local"]):
        assert printed(tmp_path, *words, "tiny.yaml") == printed(tmp_path, *words, "tiny.yaml")


def test_a_template_of_ones_own_is_filled_in(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    (tmp_path / "my.sh").write_text("#SBATCH --nodes=@nodes@\n# mail me@home.org\n@setup@\nrun @arguments@\n")
    script = printed(tmp_path, *SLURM, "tiny.yaml", "--template", "my.sh", "--setup", "module load x")
    assert script == f"#SBATCH --nodes=1\n# mail me@home.org\nmodule load x\nrun {tmp_path}/tiny.yaml\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SLURM, "tiny.yaml", "--template", "none.sh"], "none.sh: cannot be read"),
        ([*SLURM, "tiny.yaml", "--template", "bad.sh"], "unknown word @node@; did you mean 'nodes'?"),
        ([*SLURM, "tiny.yaml", "--partition", 'a"b'], "--partition"),
        ([*SLURM, "tiny.yaml", "--sbatch", "mem=1"], "--sbatch mem=1: not an option"),
        ([*SLURM, "tiny.yaml", "--sbatch=--gres=gpu:a100:2"], "with --gpus-per-node of pcr-ray submit"),
        ([*SLURM, "tiny.yaml", "--sbatch=--gres gpu"], "with --gpus-per-node of pcr-ray submit"),
        ([*SLURM, "tiny.yaml", "--sbatch=--mem=1G -G2"], "with --gpus-per-node of pcr-ray submit"),
        ([*SLURM, "tiny.yaml", "--sbatch=-N 2"], "with --nodes of pcr-ray submit"),
        ([*SLURM, "tiny.yaml", "--sbatch=--array=1-4"], "a sweep is one job"),
        ([*SLURM, "tiny.yaml", "--gpus-per-node", "-1"], "'-1' is not a number of 0 or more"),
        ([*SLURM, "tiny.yaml", "--gpus-per-node", "a100"], "such as a100:2"),
        ([*SLURM, "absent.yaml"], "absent.yaml does not exist"),
        ([*SLURM, "tiny.yaml", "--set", "fixed.datset=digits"], "did you mean 'dataset'"),
        (["slurm", "--cpus-per-node", "0", "tiny.yaml"], "'0' is not a number of 1 or more"),
        (["slrum", "tiny.yaml"], "did you mean 'slurm'?"),
        (["ray", "host:8265", "tiny.yaml"], "not the URL of a Ray dashboard"),
        (["ray", "http://127.0.0.1:abc", "tiny.yaml"], "not the URL of a Ray dashboard"),
        (["ray", "http://a..b:8265", "tiny.yaml"], "not the URL of a Ray dashboard"),
        (["ray", "http://[::1", "tiny.yaml"], "not the URL of a Ray dashboard"),
        (["ray", "http://a b:8265", "tiny.yaml"], "not the URL of a Ray dashboard"),
        (["local", "tiny.yaml", "--python", "/no/such/python"], "--python /no/such/python: no such program"),
    ],
)
def test_mistakes_are_refused_before_anything_is_submitted(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_file(tmp_path)
    (tmp_path / "bad.sh").write_text("@node@")
    trap = tmp_path / "bin" / "sbatch"
    trap.parent.mkdir()
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/submitted\n")
    trap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{trap.parent}:{os.environ['PATH']}")
    done = submit(tmp_path, "submit", *words)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "submitted").exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", EVERYWHERE, ids=lambda words: words[0])
def test_options_that_hold_credentials_are_refused_without_showing_them(words: list[str], tmp_path: Path) -> None:
    sweep_file(tmp_path)
    store, storage = ["--tracking-uri", f"http://me:{SECRET}@mlflow:5000"], ["--storage", f"s3://key:{SECRET}@bucket/x"]
    for more in ([], ["--print"]):
        done = submit(tmp_path, "submit", *words, "tiny.yaml", *store, *storage, *more)
        assert done.returncode == 2 and SECRET not in done.stdout + done.stderr
        assert all(name in done.stderr for name in ("2 problems", "MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY"))
    for uri in (f"postgresql://me:a/{SECRET}@h/x", f"http://h/?token={SECRET}", f"http://me:a {SECRET}@h"):
        done = submit(tmp_path, "submit", *words, "tiny.yaml", "--tracking-uri", uri)
        assert done.returncode == 2 and SECRET not in done.stderr and "holds credentials" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("words", EVERYWHERE, ids=lambda words: words[0])
@pytest.mark.parametrize(
    "uri",
    ["mlflow.ml:5000", "http//m:5000", "mlruns", "./x.db", "http://[::1", "http://h:x", "sqlite:///", f"me:{SECRET}@h"],
)
def test_a_store_that_cannot_be_one_is_refused_before_it_fails_elsewhere(
    words: list[str], uri: str, tmp_path: Path
) -> None:
    sweep_file(tmp_path)
    done = submit(tmp_path, "submit", *words, "tiny.yaml", "--tracking-uri", uri, "--print")
    assert done.returncode == 2 and "write a URI such as http://HOST:5000" in done.stderr
    assert "Traceback" not in done.stderr and SECRET not in done.stderr


def test_a_folder_with_an_at_sign_holds_no_credentials(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    words = ["--tracking-uri", "sqlite:////home/me@there/mlflow.db", "--storage", "file:///home/me@there/store"]
    assert as_bash_reads(printed(tmp_path, "local", "tiny.yaml", *words).partition("&&")[2])[-4:] == words
    assert "/data/me@there" in printed(tmp_path, "local", "tiny.yaml", "--storage", "/data/me@there")


def test_a_store_of_the_environment_goes_along_to_a_ray_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_file(tmp_path)
    for store, cluster in (("https://mlflow:5000", "h"), ("http://localhost:5000", "127.0.0.1")):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
        request = yaml.safe_load(printed(tmp_path, "ray", f"http://{cluster}:8265", "tiny.yaml"))
        assert request["entrypoint"].endswith(f" --tracking-uri {store}")


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (f"http://me:{SECRET}@mlflow:5000", "MLFLOW_TRACKING_PASSWORD where the cluster's head is started"),
        ("sqlite:////home/me/mlflow.db", "as the cluster's head sees it"),
        ("postgresql://db/mlflow", "as the cluster's head sees it"),
        ("http://127.0.0.1:5000", "as the cluster's head sees it"),
        (f"me:{SECRET}@mlflow:5000", "no scheme that is known"),
    ],
)
def test_a_store_of_the_environment_that_a_ray_cluster_would_miss_is_not_dropped(
    store: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_file(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    done = submit(tmp_path, "submit", "ray", "http://h:8265", "tiny.yaml", "--print")
    assert done.returncode == 2 and message in done.stderr and SECRET not in done.stderr
    for said in ("sqlite:///mlflow.db", "http://localhost:5000"):  # as the head sees it
        text = printed(tmp_path, "ray", "http://h:8265", "tiny.yaml", "--tracking-uri", said)
        assert f" --tracking-uri {said}\n" in text and store not in text


def test_a_password_in_the_url_of_a_dashboard_is_not_shown(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    for words in (
        ["submit", "ray", f"http://me:{SECRET}@127.0.0.1:1", "tiny.yaml"],
        ["submit", "ray", f"http://me:{SECRET}@127.0.0.1:1", "tiny.yaml", "--print"],
        ["job", "status", f"ray/http://me:{SECRET}@127.0.0.1:1/x"],
        ["job", "status", f"ray/http://me:{SECRET}@127.0.0.1:x/x"],
        ["job", "status", f"ray/http://me:{SECRET}@127.0.0.1:1/"],
        ["job", "status", f"http://me:{SECRET}@127.0.0.1:1/x"],
    ):
        done = submit(tmp_path, *words)
        assert done.returncode == 2 and "***@127.0.0.1" in done.stderr and SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\n\r\n\xff"])
def test_a_port_that_is_no_dashboard_is_told(greeting: bytes, tmp_path: Path) -> None:
    sweep_file(tmp_path)

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(greeting)

    with socketserver.TCPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        done = submit(tmp_path, "submit", "ray", url, "tiny.yaml")
    assert done.returncode == 2 and f"what answers at {url} is not a Ray dashboard" in done.stderr


def test_a_local_job_that_cannot_start_is_told_at_once(tmp_path: Path) -> None:
    sweep_file(tmp_path)
    (tmp_path / "python").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "python").chmod(0o755)
    done = submit(tmp_path, "submit", "local", "tiny.yaml", "--python", "./python")
    assert done.returncode == 2 and "Exec format error" in done.stderr and "--python" in done.stderr


def test_without_slurm_the_way_to_the_script_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep_file(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = submit(tmp_path, "submit", *SLURM, "tiny.yaml")
    assert done.returncode == 2
    assert "no sbatch on the PATH" in done.stderr and "--print" in done.stderr


def test_a_job_that_slurm_has_forgotten_is_known_by_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful = tmp_path / "bin" / "scontrol"
    forgetful.parent.mkdir()
    forgetful.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n")
    forgetful.chmod(0o755)
    monkeypatch.setenv("PATH", f"{forgetful.parent}:{os.environ['PATH']}")
    for out in ("runs", "other"):
        log = tmp_path / out / "tiny" / "slurm-7.log"
        log.parent.mkdir(parents=True)
        log.write_text("pcr-ray: job 7: the sweep ended with exit code 0\n")
        for folder in (tmp_path, log.parent.parent, log.parent):
            assert "the sweep ended with exit code 0, log " in submit(folder, "job", "status", "slurm/7").stdout
            assert submit(folder, "job", "logs", "slurm/7").stdout == log.read_text()
        log.unlink()
    done = submit(tmp_path, "job", "status", "slurm/7")
    assert done.returncode == 2 and "Slurm has no job 7" in done.stderr and "--out" in done.stderr


@pytest.mark.parametrize("handle", ["123", "slurm/x", "slrum/1", "local//nowhere", "ray/x"])
def test_a_handle_that_is_none_is_refused(handle: str, tmp_path: Path) -> None:
    done = submit(tmp_path, "job", "status", handle)
    assert done.returncode == 2
    assert f"'{handle}' is not a" in done.stderr and "such as" in done.stderr


def test_a_ray_jobs_command_survives_the_shell(odd: Path, tmp_path: Path) -> None:
    python = tmp_path / "my python"
    python.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv[1:]]))\n")
    python.chmod(0o755)
    text = printed(
        odd, "ray", "http://h:8265", "tiny.yaml", "--folder", "~/o'dd folder", "--python", str(python),
        "--set", "grid.seed=[0, 1]",
    )  # fmt: skip
    request = yaml.safe_load(text)
    done = subprocess.run(
        request["entrypoint"], shell=True, cwd=odd, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, *words = json.loads(done.stdout)
    assert where == f"{tmp_path}/o'dd folder"
    assert words == ["-m", "pcr_ray.sweep", f"{odd}/tiny.yaml", "--address", "auto", "--set", "grid.seed=[0, 1]"]
    assert request["runtime_env"]["working_dir"] == {"tiny.yaml": (odd / "tiny.yaml").read_text()}


def test_the_papers_numbers_travel_inside_the_file(tmp_path: Path) -> None:
    (tmp_path / "paper.csv").write_text("method,buffer,value\npcr,20,31.5\n")
    sweep_file(tmp_path, report={"paper": "paper.csv"})
    text = printed(tmp_path, "ray", "http://h:8265", "tiny.yaml")
    assert "\n    tiny.yaml: |" in text, "the sweep file is shown line by line"
    request = yaml.safe_load(text)
    inside = yaml.safe_load(request["runtime_env"]["working_dir"]["tiny.yaml"])
    assert inside["report"]["paper"] == [{"method": "pcr", "buffer": 20, "value": 31.5}]
    assert inside["grid"] == {"method": ["pcr", "er"], "seed": [0, 1]}


def test_backends_do_not_import_ray_before_they_need_it() -> None:
    code = "import sys; from pcr_ray.clusters import BACKENDS; BACKENDS.names(); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0
    assert {"local", "ray", "slurm"} <= set(BACKENDS.names())
    assert all(b.title and b.summary for b in BACKENDS)


def test_a_local_job_runs_until_its_exit_code_is_written_down(tmp_path: Path) -> None:
    (tmp_path / "local.log").touch()
    handle = f"local/{tmp_path}"
    (tmp_path / "local.pid").write_text("1")  # a number that is in use again
    assert "died" in submit(tmp_path, "job", "status", handle).stdout
    with (tmp_path / "local.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper = subprocess.Popen(
            [sys.executable, "-c", KEEPER, str(tmp_path), str(lock.fileno()), "sh", "-c", "read go; exit 75"],
            pass_fds=[lock.fileno()], stdin=subprocess.PIPE,
        )  # fmt: skip
    wait_for(lambda: (tmp_path / "local.pid").read_text() not in {"", "1"}, "the keeper")
    os.kill(keeper.pid, signal.SIGSTOP)  # as on a busy machine: the sweep has ended, and nobody has noticed yet
    assert keeper.stdin is not None
    keeper.stdin.close()
    process = psutil.Process(int((tmp_path / "local.pid").read_text()))
    wait_for(lambda: process.status() == psutil.STATUS_ZOMBIE, "the sweep's end")
    assert "running" in submit(tmp_path, "job", "status", handle).stdout
    os.kill(keeper.pid, signal.SIGCONT)
    keeper.wait()
    assert "ended with exit code 75" in submit(tmp_path, "job", "status", handle).stdout


def test_a_machine_without_room_for_a_process_is_told_and_takes_the_job_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_file(tmp_path)

    def full(*args: object, **settings: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))  # root has no limit that a fork could meet

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", full)
        done = submit(tmp_path, "submit", "local", "tiny.yaml")
    assert done.returncode == 75 and "try again later" in done.stderr
    assert "running already" not in submit(tmp_path, "submit", "local", "tiny.yaml", "--python", "true").stdout
    handle = f"local/{tmp_path}/runs/tiny"
    submit(tmp_path, "job", "logs", "--follow", handle)
    assert "ended with exit code 0" in submit(tmp_path, "job", "status", handle).stdout


@pytest.mark.slow
def test_a_local_job_has_all_verbs_and_a_foreground_sweeps_numbers(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for name, value in environment(there).items():
        monkeypatch.setenv(name, value)
    for folder in (here, there):
        folder.mkdir()
        sweep_file(folder, trainable="tests.faulty:Faulty")
    data = ["--data-root", str(root)]
    (there / "slow").touch()
    handle = f"local/{there}/runs/tiny"
    done = submit(there, "submit", "local", "tiny.yaml", *data)
    assert done.returncode == 0 and handle in done.stdout, done.stderr
    wait_for(lambda: (there / "attempts.txt").exists(), "a first task")
    assert "running already" in submit(there, "submit", "local", "tiny.yaml", *data).stdout
    assert "running, process" in submit(there, "job", "status", handle).stdout
    assert submit(there, "job", "cancel", handle).returncode == 0
    submit(there, "job", "logs", "--follow", handle)
    assert "ended with exit code 75" in submit(there, "job", "status", handle).stdout
    assert submit(there, "job", "cancel", handle).returncode == 2
    (there / "slow").unlink()
    submit(there, "submit", "local", "tiny.yaml", *data)
    assert "report.html" in submit(there, "job", "logs", "--follow", handle).stdout
    assert "ended with exit code 0" in submit(there, "job", "status", handle).stdout
    assert run_sweep(here, root).returncode == 0
    assert histories(f"sqlite:///{there}/mlflow.db") == histories(f"sqlite:///{here}/mlflow.db")
