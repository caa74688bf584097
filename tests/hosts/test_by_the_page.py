"""docs/cluster.md word for word, on three hosts with Java and nothing else, and no network beyond them.

Runs with the Spark of the environment: by Python of one with Spark 4.0, too.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from reput.store.compare import compare
from tests import pages
from tests.compat.jars import hadoop_jars
from tests.golden.store import GoldenStore, unpack
from tests.hosts import bare, network, yarn
from tests.hosts.network import CONF, SHARED, Host
from tests.hosts.submitting import HOME, Submitted
from tests.rebuilds import environment

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(network.why_not() is not None, reason=f"NOT TESTED: {network.why_not()}"),
    pytest.mark.proof,
]
_PAGE = (pages.ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
_SECRET = "(the same long random text)"
_ARCHIVE = "reput-env.tar.gz"


def _commands(heading: str) -> list[str]:
    """The commands of the first block below a heading; a comment begins those for another host."""
    (text,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", _PAGE, re.MULTILINE | re.DOTALL)
    block = re.findall(r"(?<=^\n)(?:^ {4}.*\n)+", text, re.MULTILINE)[0]
    return [part for part in re.split(r"^# .*\n", textwrap.dedent(block), flags=re.MULTILINE) if part]


def _shell(*commands: str) -> list[str]:
    return ["bash", "-ec", "\n".join(["cd /home", *commands])]


class Place:
    """Three bare hosts with a store below /data."""

    def __init__(self, work: Path, hosts: list[Host]) -> None:
        self.work, self.hosts = work, hosts
        self.golden: GoldenStore = unpack("5.3.3-mixed", work / "store")
        shutil.copytree(self.golden.root, work / "shared" / "store")
        conf = self.golden.write_broker_conf(work / "shared" / "broker.conf")
        conf.write_text(conf.read_text().replace(str(self.golden.root), "/data/store"))
        for host in hosts:
            root = host.own / bare.ROOT
            (root / "data").symlink_to(SHARED)
            (root / "home").mkdir()
            shutil.copy(work / _ARCHIVE, root / "home")
            assert bare.pythons(host) == []

    def begin(self, host: Host, name: str, *commands: str) -> Submitted:
        """Give commands to a host's shell, where the archive lies."""
        log = self.work / f"{name}.log"
        with log.open("w", encoding="utf-8") as said:
            process = host.start(_shell(*commands), log=said, stdout=subprocess.PIPE)
        return Submitted(process, log)

    def assert_rebuilt(self) -> None:
        out = self.work / "shared" / "rebuilt"
        found = compare(self.golden.root, out)
        assert found.differences == ()
        assert found.queue_bytes > 0
        assert found.index_bytes > 0
        shutil.rmtree(out)


def _pack(work: Path, *options: str) -> None:
    words = ["pack", "-o", _ARCHIVE, *options]
    command = [sys.executable, "-m", "reput.cli", *words]
    done = subprocess.run(command, env=environment(), cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "shared").mkdir()
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_standalone(work: Path) -> None:
    unpacked, exports, master, worker, submit = _commands("Standalone")
    defaults = _commands("Who may reach which port")[0].replace(_SECRET, secrets.token_hex(32))
    _pack(work, "--with-spark")
    with network.hosts(work, work / "shared", 3) as hosts:
        for host in hosts:
            bare.make_bare(host)
        place = Place(work, hosts)
        for host in hosts:
            put = f"cat >> /etc/reput-spark/spark-defaults.conf <<'END'\n{defaults}END"
            host.run(*_shell(unpacked, put))
        first, *others = hosts
        started = [place.begin(first, "master", exports, master)]
        started += [place.begin(host, host.name, exports, worker) for host in others]
        _wait_for_workers(first, len(others))
        submitted = place.begin(first, "driver", exports, submit)
        code, _ = submitted.wait()
        assert code == 0, submitted.said
        place.assert_rebuilt()
        for host in others:
            assert list((host.own / bare.ROOT / "var" / "lib" / "reput-spark").glob("app-*/*/stderr"))
        assert [one.said for one in started if one.process.poll() is not None] == []


def _wait_for_workers(master: Host, count: int) -> None:
    """Ask the master's page until it knows so many."""
    ask = r"exec 3<>/dev/tcp/10.0.0.1/8080; printf 'GET /json/ HTTP/1.0\r\n\r\n' >&3; cat <&3"
    deadline, said = time.monotonic() + 120, ""
    while True:
        with suppress(subprocess.CalledProcessError):
            if f'"aliveworkers" : {count}' in (said := master.run("bash", "-c", ask)):
                return
        assert time.monotonic() < deadline, said
        time.sleep(0.5)


def test_yarn(work: Path) -> None:
    (commands,) = _commands("YARN")
    _pack(work)
    with network.hosts(work, work / "shared", 3) as hosts:
        for host in hosts:
            bare.make_bare(host, *{jar.parent for jar in hadoop_jars()})
        place = Place(work, hosts)
        with yarn.cluster(hosts, 2, patience=120):
            # What the page takes for granted: a Spark of the cluster's own, and its settings.
            first = hosts[0]
            hadoop = first.own / bare.ROOT / "etc" / "hadoop"
            hadoop.mkdir()
            (hadoop / "conf").symlink_to(CONF)
            own = f"export SPARK_HOME={HOME} SPARK_CONF_DIR={CONF} PATH=$PATH:{HOME}/bin USER=root"
            for mode in ("client", "cluster"):
                submitted = place.begin(first, mode, own, commands.replace("-mode client", f"-mode {mode}"))
                code, _ = submitted.wait()
                assert code == 0, submitted.said
                place.assert_rebuilt()
                shutil.rmtree(first.own / bare.ROOT / "home" / "environment")
