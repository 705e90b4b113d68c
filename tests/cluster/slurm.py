"""A real Slurm on this machine: one controller and several nodes, all in a folder of their own. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch")
CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
FirstJobId={job}
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{last} CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    absent = [c for c in COMMANDS if not shutil.which(c, path=_path())]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install --no-install-recommends slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "a Slurm of our own needs root"


def _path() -> str:
    return os.environ["PATH"] + ":/usr/sbin:/sbin"


class Slurm:
    """Starts on entry and is gone on exit; `environment` is for Slurm's commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        folder = self.folder
        folder.chmod(0o755)  # munge's clients want to get to its socket
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        first = 17001 + os.getpid() % 4000 * 4
        job = 1000 + os.getpid() % 60000 * 1000  # jobs have folders by their number: not those of another test's Slurm
        ports = {"port": first, "first": first + 1, "last": first + 2}
        config = CONFIG.format(host=socket.gethostname(), folder=folder, job=job, **ports)
        (folder / "slurm.conf").write_text(config)
        munge = f"--socket={folder}/munge.sock --key-file={folder}/munge.key --pid-file={folder}/munge.pid"
        munge += f" --log-file={folder}/munge.log --seed-file={folder}/munge.seed"
        try:
            self._start("munged", "--foreground", "--force", *munge.split())
            self._wait(lambda: (folder / "munge.sock").exists(), "munged")
            self._start("slurmctld", "-D", "-c", "-f", f"{folder}/slurm.conf")
            for node in ("n1", "n2"):
                self._start("slurmd", "-D", "-N", node, "-f", f"{folder}/slurm.conf")
            self._wait(lambda: self.run("sinfo", "-h", "-o", "%D %t").strip() == "2 idle", "the nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}.out").open("ab")
        environment = os.environ | self.environment
        self.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _wait(self, ready, what: str, seconds: float = 60) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, f"{what} did not come up: see {self.folder}"
            time.sleep(0.3)

    def run(self, *command: str) -> str:
        environment = os.environ | self.environment
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout

    def state(self, number: str) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", number, "-o", "%T").strip()
