"""Trust in runs: the settings of a config that are foreign, and the signature that tells a user's own runs.

A run's config is data until it is played: it can name classes, which are imported, servers, which get what agents see,
and environment variables, which hold keys. What is not Coterie's own is *foreign*. A run with foreign settings is
played where it has the signature of this user, or where its user says so (`--trust`).

The signature is an HMAC of `config.yaml` with a key that lies in the user's own folder and in no run. So it says that
this user trained the run, and that nobody has changed its config since; copies of the run keep it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal
from urllib.parse import urlsplit

from coterie.config import registry
from coterie.config.interpolation import interpolate
from coterie.core.files import replacing
from coterie.core.lookup import family, split_address
from coterie.core.types import CoterieError

log = logging.getLogger("coterie")
SIGNATURE = "signature"  # the file in a run
KEY_BYTES = 32
RUN_FILES = ("checkpoints", "metrics.jsonl", "provenance.json", "summary.json", SIGNATURE)  # beside a run's config
ADDRESSES = (  # classes and functions of Coterie that a config names by their address, since no table has them
    "coterie.studies.exploit.deviations:Frozen",
    "coterie.worlds.adapters.minigrid:MinigridText",
    "coterie.worlds.adapters.text:ObservationText",
    "coterie.worlds.auction.text:AuctionText",
    "coterie.worlds.boards.board:BoardText",
    "coterie.worlds.boards.connect_four:ConnectFourText",
    "coterie.worlds.boards.othello:OthelloText",
    "coterie.worlds.boards.tictactoe:TictactoeText",
    "coterie.worlds.doorkey.augmentation:hide_window",
    "coterie.worlds.doorkey.augmentation:mirror",
    "coterie.worlds.doorkey.text:DoorKeyText",
    "coterie.worlds.doorkey.text:SkillText",
    "coterie.worlds.gridworld.plans:GridworldPlans",
    "coterie.worlds.gridworld.text:GridworldText",
    "coterie.worlds.gridworld.text:InstructedText",
    "coterie.worlds.mpe.plans:SpreadPlans",
    "coterie.worlds.mpe.text:MpeText",
)
OWN = {*ADDRESSES, *(address for table in registry.TABLES for address in table.values())}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ADDRESS = re.compile(r"[^\W\d][\w.]*:[^\W\d]")  # of code, somewhere in a text
HTTP = re.compile(r"\s*https?:", re.IGNORECASE)
WORDS = re.compile(r"[^\s=]+=")  # settings in one text: `language:lm=embedded`, `groups.team.policy.depth=6`
Kind = Literal["code", "environment", "server", "file", "link"]
SAYS: dict[Kind, str] = {
    "code": "names code that is not Coterie's",
    "environment": "reads environment variables",
    "server": "connects to other machines",
    "file": "writes files outside of the run",
    "link": "has links that lead out of it",
}


class Untrusted(CoterieError):
    """A run that is not this user's would run code, or reach out of its directory in another way."""


@dataclass(frozen=True)
class Foreign:
    """A setting that reaches out of Coterie and the run."""

    path: str
    text: str
    kind: Kind

    @property
    def imported(self) -> bool:
        """Whether this is code of a module that this process has imported already."""
        address = split_address(self.text)
        return self.kind == "code" and address is not None and address[0] in sys.modules


def foreign(settings: Mapping[str, Any], path: str = "") -> list[Foreign]:
    """The foreign settings of a config, or of a part of it at a path."""
    known = interpolate(dict(settings), call=False)
    prefix = [path] if path else []
    calls = [Foreign(".".join([*prefix, *at]), str(text), "environment") for at, text in known.calls.items()]
    texts = _texts(known.settings, path)
    found = [Foreign(at, text, kind) for at, text in texts if (kind := _kind(at, text)) is not None]
    return calls + [one for one in found if one.path not in {call.path for call in calls}]


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text with its path; the address of a server of any form is one with `http`."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            at = f"{path}.{name}" if path else str(name)
            if name == "name" and value.get("backend") == "http" and not HTTP.match(str(entry)):
                yield at, f"http:{entry}"
            yield from _texts(entry, at)
    elif isinstance(value, (list, tuple)):
        for number, entry in enumerate(value):
            yield from _texts(entry, f"{path}[{number}]")
    elif isinstance(value, str):
        yield path, value


def _kind(path: str, text: str) -> Kind | None:
    """The kind of a text of a config; None if it is not foreign."""
    if _is_code(path, text):
        return "code"
    if path == "train.ray.address":
        return None if text in ("local", "auto") else "server"
    if HTTP.match(text):
        return None if _hostname(text) in LOOPBACK else "server"
    if path.endswith((".cache", ".cache.path")):
        place = PurePath(text)
        return "file" if place.is_absolute() or any(part.startswith(".") for part in place.parts) else None
    return None


def _is_code(path: str, text: str) -> bool:
    """Whether a text names code: `package.module:Name`, an environment of a module, or settings that name some."""
    if split_address(text) is not None:
        return text not in OWN
    world, environment = family(registry.WORLDS, text)
    if environment and (":" in environment or (world == "pettingzoo/" and "/" not in environment)):
        return True
    if ".options" in path:  # of third-party environments, some of which make others by their name
        return ":" in text
    begins = WORDS.match(text)
    rest = text[begins.end() :] if begins else ""
    return any(sign in rest for sign in ("\\", "${")) or ADDRESS.search(rest) is not None


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address.strip()).hostname
    except ValueError:
        return None


def refusal(found: Sequence[Foreign], what: str | Path) -> Untrusted:
    """The error that names the foreign settings of a run."""
    kinds = dict.fromkeys(one.kind for one in found)
    said = [f"{SAYS[kind]}: {', '.join(f'{o.path}={o.text}' for o in found if o.kind == kind)}" for kind in kinds]
    cure = "play it only if you trust its author: --trust, in Python trust=True"
    return Untrusted(f"'{what}' {'; '.join(said)}; {cure}")


def demand(settings: Mapping[str, Any], config_file: Path) -> None:
    """Raise `Untrusted` if a run reaches out of Coterie and its directory, and is not this user's own."""
    if is_signed(config_file):
        return
    if found := [*foreign(settings), *links(config_file.parent)]:
        raise refusal(found, config_file.parent)


def links(folder: Path) -> Iterator[Foreign]:
    """The links in a run that lead out of it: what plays a run writes there."""
    inside = folder.resolve()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                yield Foreign(str(path.relative_to(folder)), os.readlink(path), "link")


def is_of_run(config_file: Path) -> bool:
    """Whether a file is the config of a run, and not an experiment that somebody wrote."""
    return config_file.name == "config.yaml" and any((config_file.parent / name).exists() for name in RUN_FILES)


# The signature ------------------------------------------------------------------------------------------


def key_file() -> Path:
    """The file of this user's key."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "coterie" / "key"


def sign(config_file: Path) -> None:
    """Sign a run's config as this user's own; without a place for the key the run stays unsigned, with a warning."""
    try:
        key = _key() or _new_key()
        with replacing(config_file.with_name(SIGNATURE)) as file:
            file.write(f"{_signature(config_file, key)}\n".encode())
    except (OSError, RuntimeError) as error:  # RuntimeError: of a user without a home
        log.warning("'%s' is not signed, so playing it may need --trust: %s", config_file.parent, error)


def is_signed(config_file: Path) -> bool:
    """Whether a run's config has the signature of this user."""
    with contextlib.suppress(OSError, RuntimeError):
        key, given = _key(), config_file.with_name(SIGNATURE).read_bytes().strip()
        return key is not None and hmac.compare_digest(_signature(config_file, key).encode(), given)
    return False


def _signature(config_file: Path, key: bytes) -> str:
    return hmac.new(key, config_file.read_bytes(), hashlib.sha256).hexdigest()


def _key() -> bytes | None:
    """This user's key; None if there is none yet, or if others could have written it."""
    try:
        with open(key_file(), "rb") as file:
            status, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    private = status.st_uid == os.getuid() and not status.st_mode & 0o077
    if not private or len(key) != KEY_BYTES:
        raise OSError(f"'{key_file()}' is damaged or open to other users; delete it to begin with a new key")
    return key


def _new_key() -> bytes:
    """Make this user's key; of two processes that do so at once both use the same one."""
    file, key = key_file(), secrets.token_bytes(KEY_BYTES)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".key-{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "wb") as made:
            made.write(key)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, file)  # fails where another process was first
    finally:
        temporary.unlink()
    found = _key()
    assert found is not None
    return found
