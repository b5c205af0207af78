"""Runs the code blocks of a Markdown page in order, in the working directory, as a reader would.

Blocks of `sh` and `console` are commands, `python` is executed in one namespace per page, and a block whose first line
is `# file: NAME` is written to that file. `<!-- not run: why -->` before a block leaves it out.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import yaml
from typer.testing import CliRunner

from coterie.cli.entry import app
from coterie.config import schema
from coterie.training import start
from helpers.run import MOMENT

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^(<!-- not run: [^\n]*-->\n)?```(\w+)\n(.*?)^```$", re.S | re.M)
FILE = re.compile(r"# file: (\S+)\n")
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str


def blocks(page):
    """The blocks of a page that are to be run."""
    return [Block(language, text) for skipped, language, text in FENCE.findall(page.read_text()) if not skipped]


class Reader:
    """Does what a page says. `short` trains for a moment only, and compares no numbers."""

    def __init__(self, short=True):
        self.short, self.names = short, {}

    def read(self, page):
        for block in blocks(page):
            named = FILE.match(block.text)
            if named:
                Path(named[1]).write_text(block.text[named.end() :])
            elif block.language == "python":
                exec(compile(block.text, f"{page.name}", "exec"), self.names)
            elif block.language == "yaml":
                self.check_yaml(block.text)
            elif block.language in ("sh", "console"):
                self.follow(block)

    def check_yaml(self, text):
        """Build what a whole config describes; fragments must at least be YAML."""
        if {"world", "extends"} & set(yaml.safe_load(text)):
            Path("block.yaml").write_text(text)
            start.check("block.yaml")

    def follow(self, block):
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                self.run(shlex.split(line, comments=True))
            return
        for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            said = self.run(shlex.split(command))
            if not self.short:
                compare(expected, said)

    def run(self, words):
        """Run one command and return what it prints."""
        if not words:
            return ""
        if words[0] == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert set(words[1:]) - {word for word in words if "=" in word} <= set(targets), words
            return ""
        if words[0] == "python":
            assert (ROOT / words[1]).is_file(), words
            return ""
        assert words[0] == "coterie", f"what is {words}?"
        if self.short and words[1] == "train" and "--out" not in words:
            overrides = [word for word in words[3:] if "=" in word]
            for combination in schema.sweep(overrides) if "-m" in words else [overrides]:
                start.check(words[2], combination)  # a test of its own trains every experiment
            return ""
        arguments = shortened(words[1:]) if self.short else [*words[1:], *(["--quiet"] if words[1] == "train" else [])]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{shlex.join(words)}: {result.output}"
        return result.output


def shortened(words):
    """The same command with little to do."""
    command = words[0]
    if command in ("train", "tune", "exploit") and "--by" not in words:
        words = [word for word in words if not word.startswith("train.total_steps=")] + MOMENT
    if command == "resume":
        words = [
            re.sub(r"^(train.total_steps)=(\d+)$", lambda m: f"{m[1]}={int(m[2]) // 2000}", word) for word in words
        ]
    for option, value in (("--trials", "2"), ("--steps", "64"), ("--episodes", "2"), ("--pairs", "2")):
        if option in words:
            words[words.index(option) + 1] = value
    if command == "exploit" and "--steps" in words:
        words = [word for word in words if not word.startswith("train.total_steps=")]
    if (command in ("eval", "match") or "--by" in words) and "--episodes" not in words:
        words = [*words, "--episodes", "2"]
    extra = {"train": ["--quiet"], "exploit": ["--quiet"], "resume": ["--quiet"], "watch": ["--fps", "60"]}
    return words + extra.get(command, [])


def compare(expected, said):
    """Every expected line is printed, with nearly the same numbers; `…` stands for lines left out."""
    printed = said.splitlines()
    for line in expected.splitlines():
        if line.strip() not in ("", "…"):
            assert any(alike(line, other) for other in printed), f"nobody printed {line!r}:\n{said}"


def alike(line, other):
    """Equal but for numbers, and numbers differ by little: other processors round otherwise."""
    if shape(line) != shape(other):
        return False
    pairs = zip(NUMBER.findall(line), NUMBER.findall(other), strict=True)
    return all(near(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)


def shape(line):
    return " ".join(NUMBER.sub("#", line).split())


def near(a, b):
    return abs(a - b) <= max(0.3, 0.1 * abs(a))
