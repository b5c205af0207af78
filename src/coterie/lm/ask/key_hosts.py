"""The servers that get keys when a run names them that somebody else may have written.

A config names a server and the environment variable that holds its key. In a config of one's own that is one's own
decision. A run's config may be a stranger's, who would read any variable by naming it with a server of theirs. So a key
goes to a server of a run only if the user has listed its host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from coterie.lm.ask.http import HttpSettings, read_key

LIST = "COTERIE_KEY_HOSTS"  # environment variable: api.example.com,localhost:8080,other.example=THEIR_KEY


class Key(NamedTuple):
    """A key on its way: the environment variable that holds it, and the server."""

    host: str
    port: int | None
    variable: str

    @classmethod
    def of(cls, address: str, settings: HttpSettings) -> Key:
        """The key that goes to the server at an address."""
        parts = urlsplit(address)
        return cls(str(parts.hostname).lower(), parts.port, settings.api_key_env)

    @property
    def exists(self) -> bool:
        """Whether the variable holds a key; without one a server is asked without."""
        return bool(read_key(self.variable))

    @property
    def entry(self) -> str:
        """The entry of the list that allows it."""
        return self.server if self.variable == HttpSettings.api_key_env else f"{self.server}={self.variable}"

    @property
    def server(self) -> str:
        """The host and its port, if the address names one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


@dataclass(frozen=True)
class KeyHosts:
    """The hosts that may get keys: pairs of a server and a variable."""

    allowed: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def listed(cls, environment: Mapping[str, str] = os.environ) -> KeyHosts:
        """The user's list. An entry without a variable is for the key that servers get by default."""
        found = set()
        for entry in environment.get(LIST, "").split(","):
            server, equals, variable = entry.strip().partition("=")
            if server:
                found.add((server.lower(), variable if equals else HttpSettings.api_key_env))
        return cls(frozenset(found))

    def allow(self, key: Key) -> bool:
        """Whether the key may go to its host: an entry with a port is for that port, one without for all."""
        host = key._replace(port=None).server
        return bool({(key.server, key.variable), (host, key.variable)} & self.allowed)
