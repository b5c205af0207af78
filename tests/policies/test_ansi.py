"""Colours of a terminal."""

import io

import numpy as np

from coterie.policies import ansi
from coterie.worlds.adapters.external import picture_to_ansi


def test_no_colour_on_request_or_in_a_file(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert ansi.in_colour(Terminal())
    assert not ansi.in_colour(io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ansi.in_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not ansi.in_colour(Terminal())


def test_pictures_keep_their_lightness_without_colours():
    picture = np.zeros((2, 3, 3), np.uint8)
    picture[:, 1] = 128
    picture[:, 2] = 255
    assert ansi.without_colours(picture_to_ansi(picture)) == " +@"
    assert ansi.without_colours("\x1b[1;34ma\x1b[0m ▀b") == "a ▀b"  # what an environment prints itself
