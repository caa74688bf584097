"""Where the benchmark ran: facts that every number depends on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import reput
from bench.java_load import HEAP
from reput.newer_python import UTC
from reput.store.system import human
from tests.compat.jars import java_executable

_ROOT = Path(__file__).parents[1]


def facts(directory: Path) -> dict[str, str]:
    """What the numbers depend on, by name.

    Args:
        directory: where the log and the outputs lie.
    """
    cpus = len(os.sched_getaffinity(0))
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "reput": _commit(),
        "CPU": f"{_cpu_model()}, {cpus} {'core' if cpus == 1 else 'cores'}",
        "memory": human(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(directory.resolve()),
        "Java": f"{_java()}; RocketMQ's store with -Xms{HEAP} -Xmx{HEAP} and G1",
        "Python": f"{platform.python_version()}, numba {version('numba')}, numpy {version('numpy')}",
        "Spark": version("pyspark"),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """The type of the mount that holds the directory."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, found, *_ = line.split()
        if directory.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _java() -> str:
    run = subprocess.run(
        [str(java_executable()), "-version"],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    runtime = run.stdout.splitlines()[1]
    return runtime.partition("(build ")[2].rstrip(")") or runtime


def _commit() -> str:
    """The commit that was measured; says so when files differ from it."""
    try:
        command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty=, changed", "--exclude=*"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return reput.__version__  # not a checkout, or no git
