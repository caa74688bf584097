"""conf/guard: a broker starts only if its start loses no messages, under a real systemd in namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput.format import names
from reput.store.lock import StoreLock
from tests.golden.store import GoldenStore
from tests.rebuilds import LIB, broker_conf, golden

GUARD = Path(LIB).parent / "conf" / "guard"
REFUSED = 78


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


@pytest.fixture
def environment(store: GoldenStore, tmp_path: Path) -> dict[str, str]:
    reput = tmp_path / "reput"
    reput.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m reput.cli "$@"\n')
    reput.chmod(0o755)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(LIB),
        "REPUT": str(reput),
        "REPUT_STORE": str(store.root),
        "REPUT_BROKER_CONF": str(broker_conf(store)),
        "REPUT_ROCKETMQ_VERSION": store.version,
        "REPUT_SKIP_ONCE": str(tmp_path / "skip-once"),
    }


def guarded(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GUARD / "reput-guard", "echo", "the broker"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def unharmed(_root: Path) -> None:
    pass


def without_index(root: Path) -> None:
    shutil.rmtree(root / names.INDEX)


def killed(root: Path) -> None:
    """A start deletes the index files that weren't told as flushed, and puts only the last segments' keys."""
    (root / names.ABORT).touch()
    with (root / names.CHECKPOINT).open("r+b") as file:
        file.seek(16)  # indexMsgTimestamp
        file.write(bytes(8))


def without_a_queue(root: Path) -> None:
    shutil.rmtree(max((root / names.CONSUME_QUEUE / "Orders").iterdir()))


def with_a_stray_file(root: Path) -> None:
    (root / names.COMMIT_LOG / "notes.txt").write_text("hello")


def new(root: Path) -> None:
    shutil.rmtree(root)


@pytest.mark.parametrize(
    ("harm", "code", "said"),
    [
        (unharmed, 0, "start it"),
        (without_index, 0, "start it"),
        (killed, 0, "index-dropped"),
        (without_a_queue, REFUSED, "mend it first"),
        (with_a_stray_file, REFUSED, "it will not start"),
        (new, 0, "can't tell"),
    ],
)
def test_what_is_refused(
    store: GoldenStore, environment: dict[str, str], harm: Callable[[Path], None], code: int, said: str
) -> None:
    harm(store.root)
    done = guarded(environment)
    assert (done.returncode, done.stdout) == (code, "" if code else "the broker\n")
    assert said in done.stderr


def test_a_store_in_use_gets_no_second_broker(store: GoldenStore, environment: dict[str, str]) -> None:
    with StoreLock(store.root):
        done = guarded(environment)
    assert (done.returncode, done.stdout) == (REFUSED, "")
    assert "in-use" in done.stderr
    assert guarded(environment).returncode == 0


def test_what_cant_be_told_is_a_setting_and_a_refusal_is_skipped_once(
    store: GoldenStore, environment: dict[str, str]
) -> None:
    new(store.root)
    environment["REPUT_CANT_TELL"] = "refuse"
    assert guarded(environment).returncode == REFUSED
    Path(environment["REPUT_SKIP_ONCE"]).touch()
    assert [guarded(environment).returncode for _ in range(2)] == [0, REFUSED]


_TARGETS = ("basic", "sysinit", "shutdown", "multi-user", "umount", "final", "sockets", "timers", "paths")
_MANAGER = """
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount --bind "$0" /lib/systemd/system
mount --bind "$1" /etc/systemd/system
mkdir -p /run/systemd /run/lock
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system \\
    --unit=basic.target --log-target=console --show-status=no
"""


@pytest.fixture
def systemctl(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A systemd of its own, with the units of a directory, in namespaces."""
    if os.getuid() or not shutil.which("systemctl") or not Path("/lib/systemd/systemd").exists():
        pytest.skip("NOT TESTED: no systemd here, or not root")
    units, own = tmp_path / "units", tmp_path / "own"
    units.mkdir()
    own.mkdir(exist_ok=True)
    for name in _TARGETS:
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\nDefaultDependencies=no\n")
    apart = ["unshare", "--fork", "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--mount-proc"]
    with (tmp_path / "systemd.log").open("w") as log:
        manager = subprocess.Popen(
            [*apart, "bash", "-c", _MANAGER, units, own], stdout=log, stderr=log, start_new_session=True
        )
    try:
        inside = _child(manager.pid)
        if inside is None:
            pytest.skip("NOT TESTED: no systemd of its own can be started here")

        def ask(*words: str) -> str:
            return subprocess.run(
                ["nsenter", "-t", str(inside), "-m", "-p", "-u", "-i", "systemctl", *words],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            ).stdout

        yield ask
    finally:
        os.killpg(manager.pid, signal.SIGKILL)
        manager.wait()


def _child(pid: int) -> int | None:
    """The systemd that a process has forked, once it answers."""
    for _ in range(200):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found and Path(f"/proc/{found[0]}/root/run/systemd/private").exists():
            return int(found[0])
        time.sleep(0.1)
    return None


def test_systemd_starts_what_is_safe_and_doesnt_try_a_refusal_again(
    store: GoldenStore, environment: dict[str, str], systemctl: Callable[..., str], tmp_path: Path
) -> None:
    text = (GUARD / "rocketmq-broker.service.d" / "reput.conf").read_text()
    shutil.copy(GUARD / "reput-guard", tmp_path / "reput-guard")
    text = text.replace(
        "/usr/local/bin/reput-guard /opt/rocketmq/bin/mqbroker", f"{tmp_path}/reput-guard sleep"
    )
    text = text.replace("-c /etc/rocketmq/broker.conf", "100")
    lines = [line for line in text.splitlines() if not line.startswith("Environment=")]
    lines += [f'Environment="{key}={value}"' for key, value in environment.items()]
    unit = tmp_path / "own" / "rocketmq-broker.service"
    drop_in = unit.with_name(f"{unit.name}.d") / "reput.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("\n".join(lines))
    unit.write_text(
        "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/false\nRestart=always\nRestartSec=1\n"
    )
    systemctl("daemon-reload")
    systemctl("start", "rocketmq-broker")

    def state() -> dict[str, str]:
        wanted = "ActiveState,NRestarts,ExecMainStatus"
        shown = systemctl("show", "rocketmq-broker", "-p", wanted)
        return dict(line.split("=", 1) for line in shown.splitlines())

    assert state()["ActiveState"] == "active"
    systemctl("stop", "rocketmq-broker")
    without_a_queue(store.root)
    systemctl("start", "rocketmq-broker")
    for _ in range(300):
        if state()["ActiveState"] == "failed":
            break
        time.sleep(0.2)
    time.sleep(2.5)
    assert state() == {"ActiveState": "failed", "NRestarts": "0", "ExecMainStatus": str(REFUSED)}
