"""Java classes of the tests' own, compiled against a release and loaded into its JVM."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.compat.jars import class_path, java_executable
from tests.compat.jvm import JavaError, Jvm


def instance(jvm: Jvm, source: Path) -> Any:
    """An instance of the class in a source file, whose package is named after the file's directory.

    Raises:
        JavaError: this Java is a runtime without compiler, or the class doesn't compile.
    """
    classes = Path(tempfile.mkdtemp(prefix="classes-", dir=jvm.home))
    compiler = [str(java_executable()), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-encoding", "UTF-8"]
    run = subprocess.run(
        [*compiler, "-nowarn", "-cp", class_path(jvm.version), "-d", str(classes), str(source)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if run.returncode != 0:
        raise JavaError(f"{source.name} doesn't compile (it needs a JDK, not a runtime alone):\n{run.stdout}")
    java = jvm.java.java
    urls = jvm.gateway.new_array(java.net.URL, 1)
    urls[0] = java.io.File(str(classes)).toURI().toURL()
    loader = java.net.URLClassLoader(urls, java.lang.ClassLoader.getSystemClassLoader())
    constructor = loader.loadClass(f"{source.parent.name}.{source.stem}").getDeclaredConstructor(
        jvm.gateway.new_array(java.lang.Class, 0)
    )
    return constructor.newInstance(jvm.gateway.new_array(java.lang.Object, 0))
