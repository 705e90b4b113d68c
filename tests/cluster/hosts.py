"""Several hosts on one machine: each has its own network, processes, name and /tmp, and one folder is shared.

Linux namespaces, so it needs root and iproute2. Nothing of it is seen outside: the interfaces exist inside the
namespaces only, and a host is gone with its first process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.sweeping import REPOSITORY, environment, wait_for

PORT = 6379
SWITCH = "PCR_RAY_NO_NAMESPACES"  # to try what is tested where there are none
# As the first process of a host: make the folders its own, keep some of what they hid, then collect the dead.
FIRST = """
set -e
stage=/mnt
mount -t tmpfs tmpfs "$stage"
i=0
for kept in "$@"; do i=$((i + 1)); mkdir "$stage/$i"; mount --rbind "$kept" "$stage/$i"; done
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
i=0
for kept in "$@"; do i=$((i + 1)); mkdir -p "$kept"; mount --rbind "$stage/$i" "$kept"; done
mkdir -p /tmp/home
echo ready
sleep infinity & wait
"""


def missing() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if os.environ.get(SWITCH):
        return f"{SWITCH} is set"
    absent = [c for c in ("ip", "unshare", "nsenter") if not shutil.which(c)]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install --no-install-recommends iproute2 util-linux)"
    tried = subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"], capture_output=True)
    return "" if not tried.returncode else f"namespaces are not allowed here: {tried.stderr.decode().strip()}"


class Host:
    """A machine of its own, as far as what runs on it can tell."""

    def __init__(self, name: str, address: str, shared: Path) -> None:
        self.name, self.address, self.shared = name, address, shared
        kept = {REPOSITORY, shared, Path(sys.prefix), Path(sys.base_prefix)}
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c",
             FIRST, "bash", *sorted(str(p) for p in kept if p.is_relative_to("/tmp"))],
            stdout=subprocess.PIPE, stderr=(shared / f"host-{name}.log").open("w"), text=True,
        )  # fmt: skip
        assert self.holder.stdout and self.holder.stdout.readline() == "ready\n", f"host {name} did not start"
        self.first = psutil.Process(self.holder.pid).children()[0].pid
        self.ray: subprocess.Popen[str] | None = None
        self.run("hostname", name)
        self.run("ip", "link", "set", "lo", "up")

    def _enter(self, command: tuple[object, ...]) -> list[str]:
        return ["nsenter", "-t", str(self.first), "-n", "-m", "-u", "-p", "--", *map(str, command)]

    def run(self, *command: object) -> str:
        done = subprocess.run(self._enter(command), capture_output=True, text=True, check=False, timeout=300)
        assert not done.returncode, f"{self.name}: {command}: {done.stderr}"
        return done.stdout

    def start(self, *command: object, log: Path, cwd: Path | None = None, **more: str) -> subprocess.Popen[str]:
        """In the environment of a user of this host; signals go through `tell`."""
        return subprocess.Popen(
            self._enter(("env", "-C", cwd or self.shared, *command)), env=self._environment(more),
            stdout=log.open("w"), stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        clean = {k: v for k, v in environment(self.shared).items() if not k.lower().endswith("_proxy")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return clean | {"PATH": path, "HOME": "/tmp/home", "RAY_TMPDIR": "/tmp"} | more

    def start_ray(self, head: Host, *words: str, cpus: int = 1, **more: str) -> None:
        """A head where it is the head itself."""
        role = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        if head is not self:
            role = [f"--address={head.address}:{PORT}"]
        self.ray = self.start(
            sys.executable, "-m", "ray.scripts.scripts", "start", *role, "--block", "--disable-usage-stats",
            f"--node-ip-address={self.address}", f"--num-cpus={cpus}", "--object-store-memory=80000000", *words,
            log=self.shared / f"ray-{self.name}.log", **more,
        )  # fmt: skip

    def has_ray(self) -> bool:
        return self.ray is not None and self.ray.poll() is None and bool(self.processes("raylet/raylet"))

    def wait_for_ray(self) -> None:
        log = self.shared / f"ray-{self.name}.log"
        wait_for(lambda: "Ray runtime started" in log.read_text(), f"Ray on {self.name}", 120)

    def processes(self, word: str) -> list[psutil.Process]:
        """Those of this host with such a word in their command."""
        place = Path(f"/proc/{self.first}/ns/pid").readlink()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                inside = Path(f"/proc/{process.pid}/ns/pid").readlink() == place
                if inside and word in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self, word: str) -> None:
        victims = self.processes(word)
        assert victims, f"{self.name} runs no {word}"
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def drain(self) -> None:
        """As a scheduler does that wants the machine back."""
        assert self.ray
        tell(self.ray, signal.SIGTERM)

    def close(self) -> None:
        """The power goes off."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)
        self.holder.wait(30)
        if self.ray:
            self.ray.wait(30)


def tell(entered: subprocess.Popen[str], number: int) -> None:
    """A signal for what `Host.start` started: nsenter stands in between."""
    for process in psutil.Process(entered.pid).children():
        process.send_signal(number)


class Lan:
    """A switch and the hosts on it. Everything is started with one token, as a cluster's admin would."""

    def __init__(self, shared: Path) -> None:
        self.shared, self.hosts = shared, dict[str, Host]()
        self.even = False  # whether the nodes are those of `three_nodes`
        self.secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        self.secret |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(8)}
        self.secret |= {"AWS_DEFAULT_REGION": "us-east-1"}

    def __enter__(self) -> Lan:
        self.switch = Host("switch", "", self.shared)
        self.switch.run("ip", "link", "add", "lan", "type", "bridge")
        self.switch.run("ip", "link", "set", "lan", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in [*self.hosts.values(), self.switch]:
            host.close()

    def add(self, name: str) -> Host:
        """A fresh machine, in place of one of that name."""
        if name in self.hosts:
            self.hosts[name].close()
        number = int(name.removeprefix("h"))
        self.hosts[name] = host = Host(name, f"10.77.0.{number + 10}", self.shared)
        ends = ["netns", str(self.switch.first), "type", "veth", "peer", "name", "eth0", "netns", str(host.first)]
        wait_for(lambda: f"port{number}:" not in self.switch.run("ip", "link").replace("@", ":"), "the old cable", 30)
        subprocess.run(["ip", "link", "add", f"port{number}", *ends], check=True)
        self.switch.run("ip", "link", "set", f"port{number}", "master", "lan", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    @property
    def head(self) -> Host:
        return self.hosts["h1"]

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    def join(self, *names: str, cpus: int = 1, wait: bool = True, **more: str) -> None:
        """Ray on these hosts, which are made where they are not there yet; h1 is the head."""
        for name in names:
            host = self.hosts.get(name) or self.add(name)
            host.start_ray(self.head, cpus=cpus, **self.secret, **more)
            if host is self.head:
                host.wait_for_ray()
        for name in names if wait else ():
            self.hosts[name].wait_for_ray()

    def three_nodes(self) -> None:
        """Three good ones, the head among them; those of earlier tests are kept where they are."""
        if self.even and [n for n, h in self.hosts.items() if h.has_ray()] == ["h1", "h2", "h3"]:
            return
        self.off()
        self.join("h1", "h2", "h3")
        self.even = True

    def off(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.hosts.clear()
        self.even = False

    def start(self, folder: Path, *words: object, on: str = "h1", **more: str) -> subprocess.Popen[str]:
        """The sweep of a folder, typed on one of the hosts."""
        command = [sys.executable, "-m", "pcr_ray.sweep", "tiny.yaml", "--data-root", "/tmp/data"]
        command += ["--address", self.address, *map(str, words)]
        return self.hosts[on].start(*command, log=folder / "out.txt", cwd=folder, **(self.secret | more))

    def python(self, code: str, on: str = "h1", **more: str) -> str:
        """What a few lines of Python print on a host."""
        log = self.shared / "python.txt"
        done = self.hosts[on].start(sys.executable, "-c", code, log=log, **(self.secret | more)).wait(120)
        assert not done, log.read_text()
        return log.read_text()

    def sweep(self, folder: Path, *words: object, **more: Any) -> tuple[int, str]:
        """Its exit code and what it printed."""
        code = self.start(folder, *words, **more).wait(400)
        return code, (folder / "out.txt").read_text()

    def tasks(self, what: str) -> list[list[str]]:
        """(host, method, seed, tasks before it) of every task begun or ended."""
        file = self.shared / "tasks.txt"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [rest for word, *rest in lines if word == what]
