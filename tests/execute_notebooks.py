"""Runs notebooks from their first cell to their last: ``python -m tests.execute_notebooks NOTEBOOK...``.

Each is written back with its outputs, without the place and time of the run, and with a digest of its code,
by which :func:`is_stale` recognizes outputs of other code. A notebook may name one cell in its metadata
(``reput``, ``picture``): ``--pictures DIR`` writes that cell's picture to ``DIR/NOTEBOOK.png``.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat import v4

if TYPE_CHECKING:
    from nbformat import NotebookNode

_SECONDS = 600
_METADATA: dict[str, Any] = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Kernel:
    """A Python process that runs notebooks one after the other, with one Spark session for all of them.

    Use it as a context manager. Names of one notebook aren't visible in the next.
    """

    def __init__(self) -> None:
        self._manager = KernelManager(kernel_name="python3")

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._manager.has_kernel:
            self._manager.shutdown_kernel()
        self._manager.context.destroy()

    def run(self, notebook: NotebookNode, directory: Path) -> NotebookNode:
        """Run all cells, in place; returns the notebook.

        Args:
            notebook: its outputs are replaced.
            directory: where the code runs.

        Raises:
            nbclient.exceptions.CellExecutionError: a cell failed.
        """
        client = NotebookClient(
            notebook,
            km=self._manager,
            timeout=_SECONDS,
            # Otherwise the number of outputs of a cell depends on timing.
            coalesce_streams=True,
            # It warns of sockets on the loopback, which only processes with its key can use.
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": str(directory)}},
        )
        with client.setup_kernel(cleanup_kc=False):
            # It takes what Python itself gives to a module, too; Spark Connect asks for that.
            client.kc.execute_interactive("%reset -f\n__spec__ = None", silent=True, timeout=_SECONDS)
            try:
                for at, cell in enumerate(notebook.cells):
                    client.execute_cell(cell, at, execution_count=client.code_cells_executed + 1)
            finally:
                client.kc.stop_channels()
        return cleaned(notebook)


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """Remove times and machine from a notebook that was run, in place; returns it."""
    for cell in notebook.cells:
        cell.metadata = {}
    named = notebook.metadata.get("reput", {}).get("picture")
    own = {"code": digest(notebook), **({"picture": named} if named else {})}
    notebook.metadata = {**_METADATA, "reput": own}
    return notebook


def picture(notebook: NotebookNode) -> bytes | None:
    """The PNG of the cell that a notebook names; None if it names none, or one without a PNG."""
    named = notebook.metadata.get("reput", {}).get("picture")
    for cell in notebook.cells:
        if cell.id == named:
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    return base64.b64decode(output["data"]["image/png"])
    return None


def digest(notebook: NotebookNode) -> str:
    """A hash of the code of a notebook, 64 hexadecimal digits."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def is_stale(notebook: NotebookNode) -> bool:
    """Whether the outputs of a notebook are of other code, or not of all its cells in order."""
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    in_order = counts == list(range(1, len(counts) + 1))
    return not in_order or notebook.metadata.get("reput", {}).get("code") != digest(notebook)


def main(words: list[str]) -> None:
    """Run notebooks and write them back."""
    parser = argparse.ArgumentParser(prog="python -m tests.execute_notebooks", description=__doc__)
    parser.add_argument("notebooks", type=Path, nargs="+", metavar="NOTEBOOK")
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    options = parser.parse_args(words)
    form: Any = v4
    for path in options.notebooks:
        notebook: NotebookNode = form.reads(path.read_text(encoding="utf-8"))
        with Kernel() as kernel:
            kernel.run(notebook, path.parent)
        path.write_text(form.writes(notebook) + "\n", encoding="utf-8")
        image = picture(notebook)
        if options.pictures is not None and image is not None:
            (options.pictures / f"{path.stem}.png").write_bytes(image)


if __name__ == "__main__":
    main(sys.argv[1:])
