"""Documents are executable: experiments, the README's examples, the code of every page, tables and references."""

import dataclasses
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

import coterie
from coterie.cli.entry import app
from coterie.config import schema
from coterie.config.schema import StopSettings
from coterie.core import lookup
from helpers import pages
from helpers.pages import ROOT
from helpers.run import MOMENT

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "tools"))

import reference  # noqa: E402  # docs/tools
import tables  # noqa: E402

# Pages ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.lm
def test_the_readmes_examples_print_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = pages.Reader(short=False)
    reader.read(ROOT / "README.md")
    assert reader.names["actions"].shape == (1,)


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert len([one for one in pages.blocks(ROOT / "README.md") if one.language == "console"]) >= 4


RUNS = {  # page -> runs that it takes for granted: experiment, directory
    "guides/auction.md": [("auction-cpt", "runs/cpt"), ("auction-neutral", "runs/neutral")],
    "guides/exploit.md": [("tag-ppo", "runs/tag"), ("tictactoe-alphazero", "runs/perfect")],
    "guides/untrusted.md": [("gridworld-cooperative", "downloads/theirs")],
    "guides/rate.md": [("gridworld-race", f"runs/{name}") for name in "abc"],
}


PAGES = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"gallery.md"}  # it names every experiment once


def marked(name):
    """Pages take seconds each, and some need the weights of the embedded language model."""
    text = (DOCS / name).read_text().lower()
    needs_model = "embedded" in text or "minilm" in text or "-lm" in text
    return pytest.param(name, marks=[pytest.mark.slow, *([pytest.mark.lm] if needs_model else [])])


@pytest.mark.slow
@pytest.mark.parametrize("name", [marked(name) for name in sorted(PAGES)])
def test_the_code_of_every_page_runs(name, tmp_path, monkeypatch, forked):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    if name in WORLD_OF_ANOTHER_PAGE:
        for block in pages.blocks(DOCS / "how-to" / "world.md"):
            if block.text.startswith("# file: echo_world.py"):
                Path("echo_world.py").write_text(block.text)
    for experiment, out in RUNS.get(name, []):
        coterie.train(experiment, MOMENT, out=out, quiet=True)
    try:
        pages.Reader().read(DOCS / name)
    finally:
        for module in set(sys.modules) - known:
            if str(getattr(sys.modules[module], "__file__", None)).startswith(str(tmp_path)):  # the page's own files
                sys.modules.pop(module)


WORLD_OF_ANOTHER_PAGE = ("how-to/advisor.md", "how-to/algorithm.md", "how-to/text-codec.md")


def test_the_commands_of_the_gallery_name_experiments():
    text = (DOCS / "gallery.md").read_text()
    shown = set(re.findall(r"^coterie train ([\w-]+)$", text, re.M))
    assert shown == {name for name in schema.experiments() if "/" not in name}


def test_commands_within_sentences_and_tables_have_arguments_that_are_accepted():
    """They are not run; what a reader would have to replace is taken as it stands."""
    whole = typer.main.get_command(app)
    written = [
        command
        for page in sorted(DOCS.rglob("*.md"))
        for command in re.findall(r"`coterie ([^`\n]+)`", page.read_text())
    ]
    assert len(written) > 30
    refused = {}
    for text in written:
        first, *words = shlex.split(text.replace("\\|", "|"))
        command = whole.commands.get(first)
        if command is None or hasattr(command, "commands"):
            continue  # `coterie COMMAND --help`; a group such as `coterie runs`
        try:
            command.make_context(first, words)
        except Exception as error:  # of Typer's copy of click, which has no public name
            if type(error).__name__ != "MissingParameter":  # the command's name alone is no mistake
                refused[text] = str(error)
    assert not refused


def test_no_page_has_formulas_that_the_site_cannot_show():
    assert [page for page in [*sorted(PAGES), "gallery.md"] if "$$" in (DOCS / page).read_text()] == []


def test_the_architecture_page_names_files_and_members_that_exist():
    iteration, checked = (DOCS / "architecture.md").read_text().partition("\n## Decisions")[0], 0
    for path, members in re.findall(r"`([\w/]+\.py)`(?:,? \(([^)]*)\))?", re.sub(r"\\s+", " ", iteration)):
        if "NAME" in path:
            continue
        text = (ROOT / "src" / "coterie" / path).read_text()
        for name in re.findall(r"`([\w.]+)`", members):
            checked += 1
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", text), f"{path}: {name}"
    assert checked >= 12


def test_generated_tables_and_the_tree_are_current():
    stale = [page.name for page in tables.pages() if tables.filled(page.read_text()) != page.read_text()]
    assert stale == [], "write them with: .venv/bin/python docs/tools/tables.py"


def test_results_of_other_settings_than_the_shipped_ones_are_marked(monkeypatch):
    """By the steps of the run, by the settings that it has recorded, or by name where only the code has changed."""
    result = tables.read("gridworld-meet")
    settings = schema.read(tables.EXPERIMENTS / "gridworld-meet.yaml")
    cases = [
        ({}, ""),
        ({"settings": settings}, ""),
        ({"settings": settings | {"seed": 1}}, "older settings"),
        ({"env_steps": 4096}, "older settings"),
    ]
    for change, mark in cases:
        monkeypatch.setattr(tables, "read", lambda name, change=change: result | change)
        assert tables.age("gridworld-meet").strip(" (").startswith(mark)
        (row,) = tables.score_rows(["gridworld-meet"])
        assert ("older settings" in row[1]) == bool(mark)
        assert bool(tables.age("gridworld-meet")) == bool(mark)
    assert set(tables.OLDER_CODE) <= set(schema.experiments())


# Settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", reference.headings().values())
def test_every_setting_has_one_line_of_documentation(heading):
    kind = next(kind for kind, title in reference.headings().items() if title == heading)
    assert [row.name for row in reference.rows(kind) if not row.meaning] == []


def test_the_reference_has_every_setting_of_every_name_table():
    page = reference.settings_page()
    for table in reference.PARTS.values():
        for name in table:
            kind = lookup.settings_type(table, name)
            for spec in dataclasses.fields(kind):
                assert f"| `{spec.name}` |" in page, f"{name}.{spec.name}"


def test_bars_in_code_stay_as_they_are():
    assert reference.row_of(("`RUN|NAME`", "one | two")) == r"| `RUN|NAME` | one \| two |"


def test_the_site_fetches_nothing_from_elsewhere():
    """The plugin `offline` takes a script from a server, unless one of this name is given."""
    given = re.findall(r"polyfills: \[(\S*iframe-worker\S*)\]", (ROOT / "mkdocs.yml").read_text())
    assert [(DOCS / name).exists() for name in given] == [True]


def test_the_example_of_settings_is_valid(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "reference" / "settings.md").read_text(), re.S)
    (tmp_path / "mine.yaml").write_text(text)
    loaded = schema.load(str(tmp_path / "mine.yaml"))
    assert (loaded.world.settings.grid_size, loaded.train.stop) == (6, StopSettings(49.0))


def test_links_between_documents_hold():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
