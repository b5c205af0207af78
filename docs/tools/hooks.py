"""MkDocs hooks: pages that are written from the source get their text when the site is built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import reference

GENERATED = {"<!-- settings -->": reference.settings_page, "<!-- commands -->": reference.commands_page}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace the markers of generated text; a marker stands on a line of its own."""
    for marker, write in GENERATED.items():
        if f"\n{marker}\n" in markdown:
            markdown = markdown.replace(marker, write())
    return markdown
