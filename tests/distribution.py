"""Builds wheel and source archive twice, compares them, and tries them: ``python -m tests.distribution``.

They are built of what is committed. Tried they are in new virtual environments with the locked versions, one
with Spark and one without for each Python, as a user with a home of its own, away from the checkout. Python
3.10 is tried with the oldest Spark's locked versions, since those of requirements/run.txt need 3.11.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
#: Without Spark and with it: what is locked.
KINDS = {"light": "light.txt", "whole": "run.txt"}
#: Without Spark nothing is locked for it.
KINDS_OF_3_10 = {"whole": "stacks/spark-4.0.txt"}
GOLDEN = "5.5.0-mixed"
#: By name, in a session that knows nothing of reput.
_BY_NAME = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for name in ("commitlog", "consumequeue", "index"):
    print(name, spark.read.format(f"rocketmq-{name}").load(sys.argv[1]).count())
"""


class TrialError(AssertionError):
    """What was built isn't what it should be, or doesn't work."""


def epoch(commit: str = "HEAD") -> str:
    """The time of a commit, s since 1970: that of all files in what is built of it."""
    return _said("git", "log", "-1", "--format=%ct", commit).strip()


def build(work: Path, commit: str = "HEAD", **environment: str) -> tuple[Path, Path]:
    """Build the source archive of a commit, and the wheel of that archive.

    Args:
        work: an empty directory.
        environment: variables that mustn't matter.

    Returns:
        The archive and the wheel.
    """
    work.mkdir(parents=True)
    tree, packed = work / "tree", work / "tree.tar"
    _said("git", "archive", "--format=tar", f"--output={packed}", commit)
    _extract(packed, tree)
    given = {**os.environ, **environment, "SOURCE_DATE_EPOCH": epoch(commit)}
    given.pop("PYTHONPATH", None)
    _build("--sdist", tree, work / "plain", given)
    (plain,) = (work / "plain").glob("*.tar.gz")
    archive = work / plain.name
    _pack_again(plain, archive, int(given["SOURCE_DATE_EPOCH"]))
    _extract(archive, work / "source")
    (source,) = (work / "source").iterdir()
    _build("--wheel", source, work, given)
    (wheel,) = work.glob("*.whl")
    return archive, wheel


def _build(kind: str, tree: Path, out: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(out), str(tree)]
    done = subprocess.run(command, env=environment, umask=0o022, check=False, capture_output=True, text=True)
    if done.returncode:
        raise TrialError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _extract(archive: Path, target: Path) -> None:
    """Extract files with the modes 644 and 755, whatever the umask is."""
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            member.mode = _mode(member)
        tar.extractall(target, members, filter="tar")


def _pack_again(source: Path, target: Path, seconds: int) -> None:
    """Write a source archive anew: sorted, with fixed modes, and times and owners of nobody's machine."""
    with (
        tarfile.open(source) as old,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.mode, member.pax_headers = seconds, _mode(member), {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)


def _mode(member: tarfile.TarInfo) -> int:
    return 0o755 if member.isdir() or member.mode & 0o100 else 0o644


def build_twice(work: Path, out: Path) -> tuple[Path, Path]:
    """Build in two places with other variables, and keep what is the same in ``out``.

    Raises:
        TrialError: it isn't the same.
    """
    first = build(work / "one", TZ="UTC", LC_ALL="C.UTF-8", PYTHONHASHSEED="1")
    second = build(work / "another place", TZ="Asia/Shanghai", LC_ALL="C", PYTHONHASHSEED="2")
    kept = []
    for one, other in zip(first, second, strict=True):
        sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (one, other)]
        if one.name != other.name or sums[0] != sums[1]:
            raise TrialError(f"built twice, {one} and {other} differ: {sums}")
        out.mkdir(exist_ok=True)
        kept.append(Path(shutil.copy(one, out / one.name)))
        print(f"{sums[0]}  {out / one.name}", flush=True)
    return kept[0], kept[1]


@dataclass
class Trial:
    """An environment with reput in it, and a user of it.

    Attributes:
        work: an empty directory.
        python: what the environment is made with.
        whole: with Spark.
        locked: the versions in it.
    """

    work: Path
    python: str
    whole: bool
    locked: Path
    steps: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """The environment."""
        return self.work / "environment"

    @property
    def home(self) -> Path:
        """The user's, empty at first."""
        return self.work / "home"

    def prepare(self) -> GoldenStore:
        """Make the environment, with all but reput; and a store to look at."""
        for name in ("home", "temporary", "elsewhere"):
            (self.work / name).mkdir(parents=True)
        _said(self.python, "-m", "venv", str(self.root))
        hashed = ["--require-hashes", "--no-build-isolation", "--use-pep517"]
        self._pip("install", "--require-hashes", "-r", str(ROOT / "requirements" / "build.txt"))
        self._pip("install", *hashed, "-r", str(self.locked))
        store = unpack(GOLDEN, self.work / "store")
        store.write_broker_conf(self.work / "broker.conf")
        return store

    def __call__(self, *words: str | Path, code: int = 0) -> str:
        """Run a program of the environment as the user does; returns what it says.

        Raises:
            TrialError: it ends with another code.
        """
        environment = {
            "HOME": str(self.home),
            "TMPDIR": str(self.work / "temporary"),
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
        }
        command = list(map(str, words))
        done = subprocess.run(
            command,
            env=environment,
            cwd=self.work / "elsewhere",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != code:
            said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
            raise TrialError(f"exit code {done.returncode} of {' '.join(command)}\n{said}")
        return done.stdout + done.stderr

    def install(self, archive: Path) -> None:
        """Install what was built, and nothing else."""
        self._pip("install", "--no-deps", "--no-build-isolation", "--no-index", str(archive))

    def uninstall(self) -> None:
        """As a user does."""
        self._pip("uninstall", "--yes", "reput")

    def _pip(self, *words: str) -> None:
        _said(str(self.root / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q", *words)

    def files(self) -> set[str]:
        """Files and directories of the environment, without what Python compiles of other packages."""
        found = {path.relative_to(self.root) for path in self.root.rglob("*")}
        return {
            path.as_posix() for path in found if "__pycache__" not in path.parts or "reput" in path.as_posix()
        }

    def left(self) -> set[Path]:
        """The user's files in home, temporary and working directory."""
        places = (self.home, self.work / "temporary", self.work / "elsewhere")
        return {path for place in places for path in place.rglob("*") if not path.is_dir()}


def look(trial: Trial, store: GoldenStore) -> None:
    """What works in any environment."""
    given = ["--broker-conf", trial.work / "broker.conf", "--rocketmq-version", store.version]
    trial("reput", "--version")
    checked = trial("reput", "check", store.root, *given)
    if "nothing" not in checked.lower():
        raise TrialError(checked)
    trial("reput", "dump", "commitlog", store.root, "--limit", "3")
    named = json.loads(trial("reput", "doctor", "--no-spark", "--json"))["checks"]
    shown = {check["name"]: check["found"] for check in named}
    for check, wanted in (
        ("files", trial.root / "share" / "reput"),
        ("cache", trial.home / ".cache" / "reput"),
    ):
        if str(wanted) not in shown[check]:
            raise TrialError(f"`reput doctor` doesn't name {wanted}: {shown[check]}")
    if not trial.whole:
        refused = trial("reput", "rebuild", store.root, "--out", trial.work / "no", *given, code=2)
        if "pip install '.[spark]'" not in refused:
            raise TrialError(refused)


def rebuild(trial: Trial, store: GoldenStore) -> None:
    """What needs Spark: the demo, rebuilds by the command and the job, the sources by their names."""
    given = ["--broker-conf", trial.work / "broker.conf", "--rocketmq-version", store.version]
    trial("reput", "demo", "--dir", trial.work / "demo")  # else it stays among the temporary files
    trial("reput", "rebuild", store.root, "--out", trial.work / "one", *given)
    job = trial.root / "share" / "reput" / "jobs" / "rebuild.py"
    trial("spark-submit", "--master", "local[2]", job, store.root, "--out", trial.work / "two", *given)
    for name in ("one", "two"):
        found = compare(store.root, trial.work / name)
        if found.differences or not found.queue_files or not found.index_files:
            raise TrialError(f"{trial.work / name} isn't what the store wrote: {found.differences}")
    counted = trial("python", "-c", _BY_NAME, store.root)
    if not all(
        re.search(rf"^{name} [1-9]\d*$", counted, re.M) for name in ("commitlog", "consumequeue", "index")
    ):
        raise TrialError(counted)


def gone(trial: Trial, before: set[str], *, removes: bool) -> None:
    """Uninstall: nothing stays but the user's cache, and that neither where it is removed first."""
    if removes:
        trial("reput", "doctor", "--remove-cache")
    trial.uninstall()
    if stays := trial.files() - before - {"share"}:  # the environment's own; reput had share/reput
        raise TrialError(f"an uninstall leaves {sorted(stays)[:10]}")
    cache = trial.home / ".cache" / "reput"
    left = {path for path in trial.left() if removes or not path.is_relative_to(cache)}
    if left:
        raise TrialError(f"files of the user's are left: {sorted(left)[:10]}")
    if not removes and not cache.exists():
        raise TrialError(f"there is no {cache}")


def try_out(work: Path, python: str, archive: Path, wheel: Path, kinds: Mapping[str, str]) -> Iterator[str]:
    """Try both in environments of one Python; says what was done."""
    for name, locked in kinds.items():
        began, whole = time.monotonic(), name == "whole"
        place = work / f"{Path(python).name}-{name}"
        trial = Trial(place, python, whole, ROOT / "requirements" / locked)
        store = trial.prepare()
        before = trial.files()
        for built in (archive, wheel):
            trial.install(built)
            look(trial, store)
            if whole and built is wheel:
                rebuild(trial, store)
            gone(trial, before, removes=built is archive)
            done = (
                "demo, check, rebuild, spark-submit, sources by name" if whole and built is wheel else "check"
            )
            yield f"{name}, {built.name}: {done}, uninstalled"
        shutil.rmtree(trial.work)
        yield f"{name}: {time.monotonic() - began:.0f} s"


def found(version: str) -> str | None:
    """A Python of a version, from PATH or of pyenv's; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python{version}")]
    for python in map(str, filter(None, candidates)):
        if not subprocess.run([python, "-V"], capture_output=True, check=False).returncode:  # a shim may fail
            return python
    return None


def _said(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrialError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    """Build, compare, try."""
    parser = argparse.ArgumentParser(prog="make dist", description=__doc__)
    parser.add_argument("--python", action="append", metavar="VERSION", help="only this one, e.g. 3.12")
    parser.add_argument("--kind", choices=tuple(KINDS), help="without Spark, or with it (default: both)")
    parser.add_argument("--only-build", action="store_true", help="build twice and compare; try nothing")
    given = parser.parse_args()
    if _said("git", "status", "--porcelain", "--untracked-files=no"):
        print("note: what isn't committed isn't built", file=sys.stderr)
    wanted = given.python or PYTHONS
    with tempfile.TemporaryDirectory(prefix="reput-dist-") as scratch:
        work = Path(scratch)
        archive, wheel = build_twice(work / "built", ROOT / "dist")
        if given.only_build:
            return
        tried = []
        for version in wanted:
            python = found(version)
            if python is None:
                print(f"Python {version}: NOT TRIED, for there is no python{version}", flush=True)
                continue
            kinds = {
                kind: locked
                for kind, locked in (KINDS_OF_3_10 if version == "3.10" else KINDS).items()
                if given.kind in (None, kind)
            }
            for said in try_out(work, python, archive, wheel, kinds):
                print(f"Python {version}: {said}", flush=True)
            tried.append(version)
    print(f"Tried with Python {', '.join(tried) or '- none'}")
    if not tried or (given.python and set(given.python) - set(tried)):
        sys.exit(1)


if __name__ == "__main__":
    main()
