"""``make compose``: docker-compose.yml and conf/kubernetes/Dockerfile, built and run by podman.

The images that a registry would serve are made first (tests/compose/images.py). Then both files' images are
built; drivers and executors of Kubernetes' image rebuild a store; the composition is brought up whole, a
worker, the tail and the broker are killed once each, all that the tail writes is compared with the broker's
files, byte for byte, and the guard refuses a broker.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import NoReturn

from reput.errors import ReputError
from tests.compat.jars import JarsUnavailableError
from tests.compose import images, kubernetes, pictures
from tests.compose.podman import ROOT, ContainersError, Podman, missing
from tests.compose.story import SERVICES, Story

_FAILED = 2
_STARTED = time.monotonic()


def say(what: str) -> None:
    """A line for people, with the seconds since the start."""
    print(f"{time.monotonic() - _STARTED:6.0f} s  {what}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--podman-compose", type=Path, default=Path("podman-compose"), metavar="FILE")
    parser.add_argument(
        "--place", type=Path, metavar="DIR", help="keep images in DIR, and use those that are there"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write what a browser shows to FILE")
    options = parser.parse_args()
    if (lacking := missing()) is not None:
        print(f"make compose: {lacking}", file=sys.stderr)
        return _FAILED
    # Names of sockets below it have to be short.
    place = options.place or Path(tempfile.mkdtemp(prefix="reput-compose-"))
    place.mkdir(exist_ok=True)
    podman = Podman(place.absolute(), options.podman_compose)
    try:
        _run(podman, options.picture)
    except (ContainersError, JarsUnavailableError, ReputError, OSError) as error:
        print(f"make compose: {error}", file=sys.stderr)
        return _FAILED
    finally:
        podman.remove(images=options.place is None)
        if options.place is None:
            shutil.rmtree(place, ignore_errors=True)
    say("all of it done")
    return 0


def _run(podman: Podman, picture: Path | None) -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    dockerfile = (ROOT / "conf/kubernetes/Dockerfile").read_text(encoding="utf-8")
    python, rocketmq = (
        re.findall(rf"FROM ({name}:\S+)", compose)[0] for name in ("python", "apache/rocketmq")
    )
    (spark,) = re.findall(r"^FROM (spark:\S+)", dockerfile, re.MULTILINE)
    if not all(podman.succeeds("image", "exists", name) for name in (python, rocketmq, spark)):
        images.make(podman, python, rocketmq, spark)
    say(f"made {python}, {rocketmq} and {spark}")
    with ThreadPoolExecutor() as pool:
        build = ("--podman-build-args=--network=host", "build")
        for built in [
            pool.submit(podman.compose, *build, name, seconds=1200)
            for name, service in SERVICES.items()
            if "build" in service
        ]:
            built.result()
    say("built the images of docker-compose.yml")
    podman.run("build", "--network=host", "-t", kubernetes.IMAGE, ROOT / "conf/kubernetes", seconds=300)
    say("built conf/kubernetes/Dockerfile")
    for line in kubernetes.run(podman):
        say(f"Kubernetes, {line}")
    story = Story(podman, say)
    try:
        story.up()
        story.compare()
        story.look()
        if picture is not None:
            pictures.take(podman.place, picture)
        story.kill_worker()
        story.kill_tail()
        story.kill_broker()
        story.compare()
        story.refuse()
    except (ContainersError, OSError):
        for service in ("broker", "tail", "spark-master"):
            if podman.succeeds("container", "exists", podman.container(service)):
                print(f"--- {service}\n{story.logs(service, 15)}", file=sys.stderr)
        raise
    story.down()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _end)
    sys.exit(main())
