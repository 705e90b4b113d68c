"""The commands of docs/cluster.md for a Ray cluster, typed as they stand there on hosts of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.hosts import Host, Lan
from tests.sweeping import REPOSITORY, children

pytestmark = pytest.mark.cluster
PAGE = (REPOSITORY / "docs/cluster.md").read_text()
SMALL = " --set grid.seed=[0] --set grid.batch_size=[10] --set fixed.fraction=0.1"


def blocks(section: str) -> list[str]:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"(?ms)^```\n(.*?)^```", text)


def test_a_cluster_by_hand_and_a_sweep_sent_to_it_or_typed_on_it(lan: Lan, folder: Path) -> None:
    first, second, sender, typed_there = blocks("Ray cluster")
    lan.off()
    head, other, elsewhere = (lan.add(name) for name in ("h1", "h2", "h3"))

    def typed(host: Host, block: str, token: str = "") -> str:
        """In one shell, up to its first mistake."""
        places = {"=...": f"={token}", "FIRST": head.address, "127.0.0.1": head.address, "/shared/studies": str(folder)}
        for word, place in places.items():
            block = block.replace(word, place)
        log = lan.shared / f"typed-{host.name}.txt"
        code = host.start("bash", "-ec", block, log=log, cwd=folder).wait(300)
        assert code == 0, log.read_text()
        return log.read_text()

    (folder / "sweeps").symlink_to(REPOSITORY / "sweeps")
    for host in (head, other, elsewhere):
        host.run("ip", "route", "add", "default", "dev", "eth0")  # by it Ray finds a machine's address
    token = typed(head, first).split()[0]
    assert re.fullmatch("[0-9a-f]{64}", token)
    typed(other, second, token)
    text = typed(elsewhere, sender.rstrip() + SMALL, token)
    assert "running" in text and f"report: {folder}/runs/quickstart/report.html" in text, text
    done = children(f"sqlite:///{folder}/mlflow.db")
    assert {run.info.status for run in done.values()} == {"FINISHED"} and len(done) == 3
    variables = second.splitlines()[0] + "\n"
    for host in (head, other):
        assert "3 done, 0 to run" in typed(host, variables + typed_there.rstrip() + SMALL, token)
    lan.off()
