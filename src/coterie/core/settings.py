"""The base class of settings, and what settings say with those nested in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from coterie.core.search_space import Choice, Range, Space

EVALUATION_COPIES = 256  # environments of an evaluation at most


class Settings:
    """The base class of the settings of worlds, policies, learners, preferences, advisors and constraints.

    Settings are frozen dataclasses. A nested settings dataclass inherits too if it has one of these members.
    """

    SEARCH: ClassVar[Space] = {}  # ranges of its fields that `coterie tune` tries
    remembers: ClassVar[bool] = True  # answers of its language models are kept; False: they change while it learns
    gamma: float = 1.0  # of a learner: discount of its decisions, which its preference is built with

    @property
    def read_once(self) -> tuple[str, ...]:
        """Names of fields that are read at the start of a training alone, so that no later change has an effect."""
        return ()

    @property
    def evaluation_copies(self) -> int:
        """Of a world: the most copies that play an evaluation."""
        return EVALUATION_COPIES

    def for_evaluation(self) -> Self:
        """Of a world: the settings for evaluations, matches and videos, with held-out instances for example."""
        return self

    def for_validation(self) -> Self | None:
        """Of a world: the settings for evaluations in training, which choose the best checkpoint.

        None: those for other evaluations.
        """
        return None


def read_once(settings: Any, path: str) -> Iterator[str]:
    """Paths of settings that are read at the start of a training alone, nested ones included."""
    if isinstance(settings, Settings):
        yield from (f"{path}.{name}" for name in settings.read_once)
    for spec in dataclasses.fields(settings):
        if dataclasses.is_dataclass(value := getattr(settings, spec.name)):
            yield from read_once(value, f"{path}.{spec.name}")


def declared(settings: Any, path: str) -> Iterator[tuple[str, Range, Any]]:
    """(path, range, present value) of everything that a settings object and its nested settings declare.

    Ranges are widened to include the present values, so that the first trial can use them. Choices that the settings
    reject together with the present values are left out; a choice with fewer than two values left is dropped.
    """
    space: Space = {}
    if isinstance(settings, Settings):
        space = settings.SEARCH
    elif "SEARCH" in vars(type(settings)):
        raise ValueError(f"{path}: {type(settings).__name__} declares SEARCH and must inherit from coterie.Settings")
    values = {spec.name: getattr(settings, spec.name) for spec in dataclasses.fields(settings)}
    for name, known in space.items():
        if name not in values:
            raise ValueError(f"{path}.{name}: {type(settings).__name__}.SEARCH names it, but it is no setting")
        try:
            known = known.including(values[name])
        except ValueError as error:
            raise ValueError(f"{path}.{name}: {error}; fix it by an override, or declare a Choice") from None
        if isinstance(known, Choice):
            fitting = tuple(value for value in known.values if _accepts(settings, name, value))
            if len(fitting) < 2:
                continue
            known = Choice(fitting)
        yield f"{path}.{name}", known, values[name]
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            yield from declared(value, f"{path}.{name}")


def _accepts(settings: Any, name: str, value: Any) -> bool:
    try:
        dataclasses.replace(settings, **{name: value})
    except ValueError:
        return False
    return True
