"""Lets an earlier version write what is kept of it: ``python -m tests.earlier.write COMMIT CHECKOUT``.

Its own code does all of it. ``CHECKOUT`` is a tree of that commit: ``git archive COMMIT | tar x -C DIR``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from reput.format import names
from reput.newer_python import UTC
from tests.earlier.kept import ARCHIVE, DIRECTORY, MANIFEST, PLACE, STORE, alone, begin, harm
from tests.golden.store import describe, pack

GOLDEN = "5.5.0-mixed"
#: Shares of the log at which it stands still; it is killed at the last one.
SHARES = (0.2, 0.4, 0.6)


def main(commit: str, checkout: Path) -> None:
    """Write ``tests/earlier/VERSION-COMMIT``."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout}/lib:{checkout}", "TZ": "UTC"}

    def reput(*words: object, code: int = 0) -> str:
        command = [sys.executable, "-m", "reput.cli", *map(str, words)]
        print("$ reput", *words, flush=True)
        done = subprocess.run(
            command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode != code:
            sys.exit(f"exit code {done.returncode}: {done.stdout}")
        return done.stdout

    version = reput("--version").split()[-1]
    with alone():
        live = begin(GOLDEN)
        conf = ["--broker-conf", PLACE / "broker.conf", "--rocketmq-version", live.whole.version]
        live.grow(live.share(SHARES[0]))
        tail = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "reput.cli",
                "tail",
                live.root,
                "--out",
                PLACE / "tailed",
                *map(str, conf),
            ],
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        try:
            for share in SHARES:
                known = live.share(share)
                live.grow(known)
                _reach(PLACE / "tailed" / names.REPUT / "journal", known, environment)
        finally:
            os.killpg(tail.pid, 9)
            tail.wait()
        reput("catalog", live.root, "--table", PLACE / "messages", *conf)
        store = PLACE / STORE
        shutil.copytree(live.whole.root, store)
        shutil.rmtree(store / names.COMMIT_LOG)
        shutil.copytree(live.root / names.COMMIT_LOG, store / names.COMMIT_LOG)
        reput("rebuild", store, "--in-place", *conf, code=1)  # some queues lie past the shorter log
        reput("dump", "digest", store, "-o", PLACE / "store.digest", *conf)
        harmed = harm(store)
        listed = f'[[store]]\nplace = "{store}"\nbroker = "broker-a"\ncluster = "north"\n'
        listed += f'broker_conf = "{PLACE}/broker.conf"\nrocketmq_version = "{live.whole.version}"\n'
        (PLACE / "stores.toml").write_text(listed)
        reput("check", PLACE / "stores.toml", "--history", PLACE / "history", code=3)
        reput("check", store, *conf, "--proofs", PLACE / "store.proofs", code=3)
        facts = {
            "reput": version,
            "commit": commit,
            "written": f"{datetime.now(UTC):%Y-%m-%d}",
            "golden": GOLDEN,
            "known": live.share(SHARES[-1]),
            "harmed": harmed.relative_to(store).as_posix(),
            "code": _hash(checkout / "lib"),
        }
        for path in (PLACE / "golden", live.root, PLACE / "broker.conf", store / names.COMMIT_LOG):
            (shutil.rmtree if path.is_dir() else Path.unlink)(path)
        facts["files"] = describe(PLACE)
        target = DIRECTORY / f"{version}-{commit}"
        target.mkdir(exist_ok=True)
        pack(PLACE, target / ARCHIVE)
        (target / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _reach(journal: Path, offset: int, environment: dict[str, str]) -> None:
    """Wait until a tail has committed everything below a physical offset, as its own version reads it."""
    script = "import sys; from reput.output.journal import read_state; from pathlib import Path; "
    script += "print(read_state(Path(sys.argv[1]))[1].cursor)"
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if journal.exists():
            command = [sys.executable, "-c", script, str(journal)]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode == 0 and int(done.stdout) >= offset:
                return
        time.sleep(0.2)
    sys.exit(f"the tail doesn't come to {offset}")


def _hash(directory: Path) -> str:
    """SHA-256 of all Python files below a directory."""
    found = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        found.update(path.relative_to(directory).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute())
