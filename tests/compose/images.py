"""The images that a registry would serve, made under the same names, of Debian's packages and Maven's jars.

Each has the layout of its original, as far as docker-compose.yml and conf/kubernetes/Dockerfile look at it.
What differs: RocketMQ runs on Debian's Java 17 by its release's scripts, where its image has Java 8 and
scripts of its own; Python is Debian's, in ``/usr/local`` as a virtual environment; of Spark's image there are
only two scripts, which do what Spark's do with the words ``driver`` and ``executor``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.compat.jars import jars, source_release
from tests.compose.podman import ContainersError, Podman

_DEBIAN = "debian-bookworm"
_SUITE = "bookworm"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
#: What pip is told on this machine and has to be told in a container, too.
_PIP = re.compile(r"^[\w:]+\.(index-url|extra-index-url|trusted-host|proxy)='(.*)'$", re.MULTILINE)
_EXAMPLE = "org/apache/rocketmq/example/quickstart/Producer.java"

_PYTHON = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv \\
 && rm -rf /var/lib/apt/lists/* \\
 && python3 -m venv /usr/local
CMD ["python3"]
"""
_ROCKETMQ = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jdk-headless procps \\
 && rm -rf /var/lib/apt/lists/* \\
 && groupadd -g 3000 rocketmq && useradd -l -u 3000 -g 3000 -m -s /bin/bash rocketmq
ENV ROCKETMQ_VERSION={version} ROCKETMQ_HOME=/home/rocketmq/rocketmq-{version}
COPY --chown=3000:3000 rocketmq /home/rocketmq/rocketmq-{version}
WORKDIR /home/rocketmq/rocketmq-{version}/bin
RUN mkdir /tmp/classes && javac -nowarn -cp '../lib/*' -d /tmp/classes ../Producer.java \\
 && jar cf ../lib/rocketmq-example-{version}.jar -C /tmp/classes . && rm -r /tmp/classes ../Producer.java
USER rocketmq
ENTRYPOINT ["./docker-entrypoint.sh"]
CMD ["dummy"]
"""
_SPARK = "FROM {base}\nCOPY entrypoint.sh decom.sh /opt/\n"
#: What Spark's words mean to its own entry point.
_SPARK_ENTRY = r"""#!/bin/bash
set -e
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
classes="$SPARK_CLASSPATH:$SPARK_HOME/jars/*${SPARK_CONF_DIR:+:$SPARK_CONF_DIR}:$PWD"
case $1 in
driver)
    shift
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" "$@" ;;
executor)
    for name in "${!SPARK_JAVA_OPT_@}"; do options+=("${!name}"); done
    exec tini -s -- "$java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "$classes" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME" ;;
*)
    exec "$@" ;;
esac
"""
_PASS_ON = '#!/bin/sh\nexec "$@"\n'
#: A preStop hook, and SIGPWR is how an executor is decommissioned.
_SPARK_DECOM = "#!/bin/sh\npkill -PWR java\n"


def make(podman: Podman, python: str, rocketmq: str, spark: str) -> None:
    """Make the three images, by their names in the files of this repository.

    Raises:
        ContainersError: Debian's packages can't be had, or a build failed.
        JarsUnavailableError: Maven's can't.
    """
    _debian(podman)
    contexts = {name: podman.place / name for name in ("python", "rocketmq", "spark")}
    for context in contexts.values():
        context.mkdir()
    version = rocketmq.partition(":")[2]
    _rocketmq(contexts["rocketmq"] / "rocketmq", version)
    _script(contexts["spark"] / "entrypoint.sh", _SPARK_ENTRY)
    _script(contexts["spark"] / "decom.sh", _SPARK_DECOM)
    with ThreadPoolExecutor() as pool:
        for built in (
            pool.submit(_build, podman, python, _PYTHON.format(base=_DEBIAN), contexts["python"]),
            pool.submit(
                _build,
                podman,
                rocketmq,
                _ROCKETMQ.format(base=_DEBIAN, version=version),
                contexts["rocketmq"],
            ),
            pool.submit(_build, podman, spark, _SPARK.format(base=_DEBIAN), contexts["spark"]),
        ):
            built.result()
    for context in contexts.values():
        shutil.rmtree(context)


def _debian(podman: Podman) -> None:
    tree = podman.place / "debian"
    sources = _sources()
    command = [
        "debootstrap",
        "--variant=minbase",
        "--include=ca-certificates",
        _SUITE,
        tree,
        sources[0].split()[1],
    ]
    with (podman.place / "debootstrap.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=600)
    if done.returncode:
        last = (podman.place / "debootstrap.log").read_text().splitlines()[-5:]
        raise ContainersError("debootstrap failed:\n" + "\n".join(last))
    (tree / "etc/apt/sources.list").write_text("".join(f"{line}\n" for line in sources))
    dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    kept = [line for line in dumped.splitlines() if re.match(r"Acquire::(https?::|Check-)", line)]
    (tree / "etc/apt/apt.conf.d/99here").write_text("".join(f"{line}\n" for line in kept))
    # As in the images of Debian's that Docker builds: what isn't kept needs no flush.
    (tree / "etc/dpkg/dpkg.cfg.d/docker-apt-speedup").write_text("force-unsafe-io\n")
    # Whoever stands between this machine and a registry has its certificate here.
    if _CERTIFICATES.exists():
        shutil.copyfile(_CERTIFICATES, tree / _CERTIFICATES.relative_to("/"))
    told = subprocess.run(
        ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    lines = [
        "[global]",
        f"cert = {_CERTIFICATES}",
        "disable-pip-version-check = true",
        "root-user-action = ignore",
    ]
    lines += [f"{key} = {value}" for key, value in dict(_PIP.findall(told.stdout)).items()]
    (tree / "etc/pip.conf").write_text("".join(f"{line}\n" for line in lines))
    shutil.rmtree(tree / "var/cache/apt/archives")
    packed = podman.place / "debian.tar"
    subprocess.run(["tar", "-C", tree, "-cf", packed, "."], check=True)
    podman.run("import", packed, _DEBIAN, seconds=300)
    packed.unlink()
    shutil.rmtree(tree)


def _sources() -> list[str]:
    """Where this machine's apt has Debian's packages from, in lines of a sources.list; the release first."""
    wanted = "deb $(REPO_URI) $(CODENAME) $(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", wanted, "Identifier: Packages"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        told = []
    found = sorted(
        {line for line in told if line.split()[2].startswith(_SUITE)}, key=lambda line: line.split()[2]
    )
    if not found or found[0].split()[2] != _SUITE:
        raise ContainersError(f"apt's sources here have no Debian {_SUITE}, which the images are made of")
    return found


def _rocketmq(home: Path, version: str) -> None:
    """What a release's archive holds, as far as it is used, and a source that is compiled later."""
    (home / "lib").mkdir(parents=True)
    for jar in jars(version):
        shutil.copy(jar, home / "lib")
    with zipfile.ZipFile(source_release(version)) as archive:
        for entry in archive.namelist():
            path = Path(*Path(entry).parts[1:])
            if path.match("distribution/bin/*") or path.match("distribution/conf/broker.conf"):
                target = home / path.relative_to("distribution")
            elif path.match("*/src/main/resources/rmq.*.logback.xml"):
                target = home / "conf" / path.name
            elif path.as_posix().endswith(_EXAMPLE):
                target = home / path.name
            else:
                continue
            if not entry.endswith("/"):
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(archive.read(entry))
    for script in (home / "bin").iterdir():
        script.chmod(0o755)
    _script(home / "bin" / "docker-entrypoint.sh", _PASS_ON)


def _script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _build(podman: Podman, name: str, text: str, context: Path) -> None:
    (context / "Dockerfile").write_text(text, encoding="utf-8")
    podman.run("build", "--network=host", "-t", name, context, seconds=1200)
