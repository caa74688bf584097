"""The notebooks run from the first cell to the last, and what is kept of their outputs is what they say."""

from __future__ import annotations

import ast
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from tests.conftest import LIB
from tests.execute_notebooks import Kernel, cleaned, digest, is_stale, picture

DIRECTORY = LIB.parent / "notebooks"
NOTEBOOKS = ("fleet", "incident", "latency", "offsets")
_MOST_BYTES = 1_000_000
_MOST_LINES = 3
_SECONDS = "4"
#: A directory of this machine, or of the one that ran the notebook before.
_PLACE = re.compile(r"(?<![\w.])/(?:home|root|tmp|var|opt|usr|work|mnt|private|Users|workspaces?)\b[^\s'\"]*")
#: What differs from run to run.
_CHANGES = re.compile(r"took .*|replaced-\w+")


def kept(name: str) -> NotebookNode:
    return nbformat.read(DIRECTORY / f"{name}.ipynb", as_version=4)


def words(notebook: NotebookNode) -> list[list[str]]:
    """What each code cell says, pictures by their titles."""
    return [
        [
            output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
            for output in cell.outputs
        ]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.fixture(scope="module")
def ran() -> dict[str, NotebookNode]:
    """All notebooks as they come out now; one with Spark waits while the other has a tail work."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("REPUT_STORE", "REPUT_BROKER_CONF", "REPUT_ROCKETMQ_VERSION"):
            patch.delenv(variable, raising=False)
        patch.setenv("REPUT_SECONDS", _SECONDS)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(LIB), os.environ.get("PYTHONPATH")])))

        def run(*names: str) -> dict[str, NotebookNode]:
            with Kernel() as kernel:
                return {name: kernel.run(kept(name), DIRECTORY) for name in names}

        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(run, "latency"), pool.submit(run, "offsets", "incident", "fleet")]
            return {name: notebook for done in both for name, notebook in done.result().items()}


def test_every_notebook_is_known_here() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*.ipynb")) == sorted(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_outputs_are_those_of_the_code(name: str) -> None:
    assert not is_stale(kept(name)), "make notebooks"


def test_stale_outputs_are_seen() -> None:
    for change in ("source", "execution_count"):
        notebook = kept("offsets")
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        first[change] = {"source": "store = None", "execution_count": 2}[change]
        assert is_stale(notebook)
    notebook.metadata = {}
    assert is_stale(notebook)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_notebooks_tell_nothing_of_a_machine(name: str) -> None:
    path = DIRECTORY / f"{name}.ipynb"
    assert path.stat().st_size < _MOST_BYTES
    notebook = kept(name)
    assert cleaned(kept(name)) == notebook
    for cell in notebook.cells:
        said = [cell.source]
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr"
            said += [output.get("text", ""), *map(str, output.get("data", {}).values())]
        for text in said:
            text = re.sub(r"^[A-Za-z0-9+/=\n]{200,}$", "", text)  # a picture
            assert not _PLACE.search(text.replace("/data/rocketmq/store", "")), cell.id
            assert f" on {socket.gethostname()}" not in text


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_pages_show_the_notebook_s_own_picture(name: str) -> None:
    path = LIB.parent / "docs" / "images" / f"{name}.png"
    assert path.stat().st_size < 150_000
    assert path.read_bytes() == picture(kept(name)), "make notebooks"


def test_what_a_cell_prints_is_one_output(tmp_path: Path) -> None:
    """However often the kernel sends what was printed so far, which goes by the clock."""
    printing = new_notebook(cells=[new_code_cell("print('one', flush=True)\nprint('two', flush=True)")])
    with Kernel() as kernel:
        assert words(kernel.run(printing, tmp_path)) == [["one\ntwo\n"]]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_helpers_live_in_the_library(name: str) -> None:
    for cell in kept(name).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                    assert (node.end_lineno or 0) - node.lineno < _MOST_LINES, node.name


@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs(ran: dict[str, NotebookNode], name: str) -> None:
    assert ran[name].metadata["reput"]["code"] == digest(kept(name))
    assert [len(cell) for cell in words(ran[name])] == [len(cell) for cell in words(kept(name))]


@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.parametrize("name", ["offsets", "incident", "fleet"])
def test_notebook_says_what_it_said(ran: dict[str, NotebookNode], name: str) -> None:
    """But for what depends on the clock: `make notebooks` where the change is meant."""
    for now, before in zip(words(ran[name]), words(kept(name)), strict=True):
        assert [_CHANGES.sub("", text) for text in now] == [_CHANGES.sub("", text) for text in before]


@pytest.mark.proof
@pytest.mark.spark
def test_a_store_comes_back(ran: dict[str, NotebookNode]) -> None:
    last = words(ran["incident"])[-1][0].splitlines()
    assert last[-1].split()[-2:] == ["-1", "-4"], "the message that was hit, and its keys"


@pytest.mark.proof
@pytest.mark.spark
def test_a_tail_commits_all_that_was_written(ran: dict[str, NotebookNode]) -> None:
    said = "\n".join(text for cell in words(ran["latency"]) for text in cell)
    assert "with everything committed: True" in said
    assert "lag        none: every whole message of the log is committed" in said
    (titled,) = re.findall(r"\[chart: Half of ([\d,]+) messages were committed", said)
    (written,) = re.findall(r"([\d,]+) messages written", said)
    assert titled == written
