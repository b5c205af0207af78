"""Images and text renderings of auctions, in NumPy alone.

A light bar shows a bidder's valuation between 0 and 1, the dark bar inside it the bid. The left half shows the latest
round, with a golden mark over the winner and the price as a line; the right half shows the item on sale now, and after
the last round the item of that round, so that bars do not jump from one half to the other.
"""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array
from coterie.core.world import Sign
from coterie.worlds.auction.kernels import Round

HEIGHT, SIDE = 288, 288  # pixels of one half of an image
_MARGIN = 24
_PAPER = np.array([250, 248, 243], np.uint8)
_INK = np.array([60, 62, 70], np.uint8)
_RESERVE = np.array([200, 196, 186], np.uint8)
_GOLD = np.array([240, 178, 40], np.uint8)
# Okabe and Ito's colour-blind-safe palette.
_COLOURS = np.array([[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [140, 100, 60]])


def frame(latest: Round | None, valuation: Array | None, copy: int, reserve: float) -> Array:
    """An image of one copy, `[288, 576, 3]` uint8; the left half is empty before the first round."""
    picture = np.empty((HEIGHT, 2 * SIDE, 3), np.uint8)
    picture[:] = _PAPER
    picture[_row(0.0), _MARGIN // 2 : 2 * SIDE - _MARGIN // 2] = _INK
    if reserve > 0:
        picture[_row(reserve), _MARGIN // 2 : 2 * SIDE - _MARGIN // 2 : 4] = _RESERVE
    if latest is not None:
        bids, winner = latest.bid[copy], int(latest.winner[copy])
        _bars(picture[:, :SIDE], latest.valuation[copy], bids)
        if winner >= 0:
            left, right = _columns(winner, len(bids))
            picture[_MARGIN // 4 : _MARGIN // 2, left:right] = _GOLD
            picture[_row(float(latest.price[copy])), _MARGIN // 2 : SIDE - _MARGIN // 2] = _INK
    if valuation is None and latest is not None:
        valuation = latest.valuation[copy]
    if valuation is not None:
        _bars(picture[:, SIDE:], valuation, np.zeros_like(valuation))
    return picture


def legend(bidders: tuple[str, ...]) -> tuple[Sign, ...]:
    """The bidders, and what bars and lines mean."""
    signs = []
    for number, name in enumerate(bidders):
        red, green, blue = (int(part) for part in _COLOURS[number % len(_COLOURS)])
        signs.append(Sign(name, name, (red, green, blue)))
    gold = (int(_GOLD[0]), int(_GOLD[1]), int(_GOLD[2]))
    meanings = Sign("", "light bar: valuation, dark bar: bid, line: price"), Sign("", "winner", gold)
    return (*signs, *meanings, Sign("", "left: latest round, right: item on sale"))


def ansi(latest: Round | None, valuation: Array | None, copy: int, rounds: int) -> str:
    """One copy as text: a line for each bidder of the latest round, then one for each present valuation."""
    lines, number = [], 0
    if latest is not None:
        number, winner = int(latest.round[copy]), int(latest.winner[copy])
        lines.append(
            f"round {number} of {rounds}: {f'sold at {latest.price[copy]:.3f}' if winner >= 0 else 'not sold'}"
        )
        for a, (value, bid, paid) in enumerate(
            zip(latest.valuation[copy], latest.bid[copy], latest.paid[copy], strict=True)
        ):
            mark = "  won" if a == winner else ""
            lines.append(f"bidder_{a}  value {value:.3f}  bid {bid:.3f}  paid {paid:.3f}{mark}")
    if valuation is not None:
        lines.append(f"round {number + 1} of {rounds}: on sale")
        lines += [f"bidder_{a}  value {value:.3f}  {_bar(value)}" for a, value in enumerate(valuation)]
    return "\n".join(lines)


def _bar(value: float) -> str:
    return "#" * round(20 * float(value))


def _row(height: float) -> int:
    """The image row at a height between 0 and 1."""
    return round(HEIGHT - _MARGIN - height * (HEIGHT - 2 * _MARGIN))


def _columns(bidder: int, bidders: int) -> tuple[int, int]:
    """First and last column of a bidder's bar."""
    width = (SIDE - 2 * _MARGIN) / bidders
    left = _MARGIN + bidder * width
    return round(left + 0.1 * width), max(round(left + 0.9 * width), round(left + 0.1 * width) + 1)


def _bars(side: Array, valuation: Array, bids: Array) -> None:
    for a, (value, bid) in enumerate(zip(valuation, bids, strict=True)):
        left, right = _columns(a, len(bids))
        colour = _COLOURS[a % len(_COLOURS)]
        side[_row(value) : _row(0.0), left:right] = (0.35 * colour + 0.65 * _PAPER).astype(np.uint8)
        inset = (right - left) // 4
        side[_row(bid) : _row(0.0), left + inset : right - inset] = colour
