"""MkDocs hooks: pages that are written from the source, or from notebooks, get their text when the site is built."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import notebook
import reference

GENERATED = {"<!-- settings -->": reference.settings_page, "<!-- commands -->": reference.commands_page}


def on_files(files: Any, config: Any) -> Any:
    """Add a page for every notebook; the notebook itself stays next to it."""
    from mkdocs.structure.files import File

    for path in sorted(notebook.FOLDER.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook.page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace the markers of generated text, each on a line of its own, and lead links to notebooks to their pages."""
    for marker, write in GENERATED.items():
        if f"\n{marker}\n" in markdown:
            markdown = markdown.replace(marker, write())
    return re.sub(r"(\]\(\S*notebooks/\w+)\.ipynb\)", r"\1.md)", markdown)
