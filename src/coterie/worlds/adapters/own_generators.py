"""Global generators for each environment: for environments that draw from `random`, `numpy.random` or PyTorch.

Such an environment ignores its seed, and copies that share the generators disturb each other. `OwnGenerators` seeds
them at every reset and gives each environment a state of its own, so that episodes depend on their seed and actions
alone and a resumed run replays them exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.core.global_random import global_state, seed_global, set_global_state
from coterie.worlds.adapters.batch import EnvFactory


class OwnGenerators:
    """An environment (`ExternalEnv`) that runs with its own state of the global generators."""

    generators: tuple[Any, ...]  # the state that this environment left

    def __init__(self, make_env: EnvFactory) -> None:
        with self._own(0):  # a constructor may draw, too
            self.inner: Any = make_env()

    def reset(self, seed: int) -> None:
        """Start an episode with generators seeded from its seed."""
        with self._own(seed):
            self.inner.reset(seed)

    def step(self) -> bool:
        """Step with the generators as this environment left them."""
        with self._own():
            over: bool = self.inner.step()
        return over

    def frame(self) -> Any:
        """The environment's picture."""
        with self._own():
            return self.inner.frame()

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["inner"], name)  # everything else draws nothing

    @contextmanager
    def _own(self, seed: int | None = None) -> Iterator[None]:
        """Run the block with this environment's generators, then give the others back theirs."""
        others = global_state()
        if seed is None:
            set_global_state(self.generators)
        else:
            seed_global(seed)
        try:
            yield
        finally:
            self.generators = global_state()
            set_global_state(others)
