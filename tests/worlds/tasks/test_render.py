"""Pictures of text tasks."""

import numpy as np

from coterie.worlds.tasks.render import COLUMNS, GROUND, draw_text


def inked(text):
    return (draw_text(text) != GROUND).any(axis=-1)


def test_columns_stay_straight():
    assert np.array_equal(inked("i   #")[:, 40:], inked("W   #")[:, 40:])


def test_mathematical_signs_are_drawn_and_not_boxes_for_missing_letters():
    signs = [inked(sign) for sign in "≤≥−π√"]
    assert all(not np.array_equal(one, other) for i, one in enumerate(signs) for other in signs[:i])


def test_long_lines_are_broken_and_all_frames_have_one_size():
    assert draw_text("").shape == draw_text("x\n" * 100).shape
    assert np.array_equal(inked("x" * (COLUMNS + 1)), inked("x" * COLUMNS + "\nx"))
    assert inked("\n".join("x" * 100))[-30:].any()  # the last line says that more was left out
