"""The notebooks of the documentation: executed without errors, small, pages of the site, and in step with the code."""

import base64
import json
import sys

import pytest

from helpers.needs import needs
from helpers.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "tools"))

import notebook  # docs/tools

NOTEBOOKS = sorted(notebook.FOLDER.glob("*.ipynb"))
SMALL = {  # in place of the cell with the tag `parameters`
    "expert": "SEEDS, EPISODES, FRAMES, SCRATCH_FRAMES, CLONE_STEPS = (0,), 2, 4096, 4096, 2048",
}


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_executed_without_errors(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "make notebook runs them"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < notebook.MOST_BYTES
    assert "/tmp" not in path.read_text()  # nothing of the machine that ran it


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_becomes_a_page_with_its_outputs(path):
    page = notebook.page(path)
    assert page.startswith("# ")
    for cell in code_cells(path):
        assert "".join(cell["source"]).rstrip() in page
        for output in cell["outputs"]:
            assert "".join(output.get("text", "")).rstrip() in page
    (picture,) = [part.partition('"')[0] for part in page.split("data:image/png;base64,")[1:]]
    assert base64.b64decode(picture).startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.lm
@needs("IPython", "docs")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in code_cells(path):
        text = "".join(cell["source"])
        if "parameters" in cell["metadata"].get("tags", ()):
            text = SMALL[path.stem]
        exec(compile(text, path.name, "exec"), names)
    assert len(names["curves"]["PPO from the clone"]) == 1
    assert names["succeeded"] == 2
