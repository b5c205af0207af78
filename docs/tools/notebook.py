"""Runs the notebooks of the documentation again, and turns them into pages.

    python docs/tools/notebook.py [NOTEBOOK…]

Running needs nbclient and ipykernel (`pip install 'coterie[docs]'`); outputs are kept in the file, without what
differs between machines and times. A page is written when the site is built (`hooks.py`): Markdown cells as they are,
code and printed text as blocks, pictures embedded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "notebooks"
MOST_BYTES = 300_000  # of a notebook with its outputs
TIME_LIMIT = 1800  # seconds for one cell


def run(path: Path) -> None:
    """Run all cells and write the notebook with its outputs; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=TIME_LIMIT, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    nbformat.write(notebook, path)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path}: {path.stat().st_size:,} bytes with outputs; at most {MOST_BYTES:,}")


def page(path: Path) -> str:
    """A notebook as Markdown."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else block("python", text))
        parts += [shown(output) for output in cell.get("outputs", ())]
    note = f"*This page is a notebook with its outputs: [{path.name}]({path.name}).*"
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n{note}\n{rest}\n"


def shown(output: dict[str, Any]) -> str:
    """One output of a cell."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="output" src="data:image/png;base64,{picture}">'
    return block("text", "".join(output.get("text") or data.get("text/plain", "")))


def block(language: str, text: str) -> str:
    """A fenced block."""
    return f"```{language}\n{text.rstrip()}\n```"


if __name__ == "__main__":
    for one in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.ipynb")):
        run(one)
        print(f"{one}, {one.stat().st_size:,} bytes")
