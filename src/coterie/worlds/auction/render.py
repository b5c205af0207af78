"""Pictures of auctions in NumPy alone, and the same in letters.

A bar reaches as high as its bidder values the item, between 0 and 1; the darker bar inside it is the bid. On the left
stands the latest round, its winner under a golden mark and the price as a line, on the right what is on sale now.
"""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array
from coterie.worlds.auction.kernels import Sale

HEIGHT, SIDE = 288, 288  # pixels of a picture, which has two sides
_MARGIN = 24
_PAPER = np.array([250, 248, 243], np.uint8)
_INK = np.array([60, 62, 70], np.uint8)
_RESERVE = np.array([200, 196, 186], np.uint8)
_GOLD = np.array([240, 178, 40], np.uint8)
# Okabe and Ito's palette, told apart also by colour-blind people.
_COLOURS = np.array([[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [140, 100, 60]])


def frame(sale: Sale | None, valuation: Array | None, copy: int, reserve: float) -> Array:
    """One copy, `[288, 576, 3]` uint8; a side with nothing to show is empty."""
    picture = np.empty((HEIGHT, 2 * SIDE, 3), np.uint8)
    picture[:] = _PAPER
    picture[_row(0.0), _MARGIN // 2 : 2 * SIDE - _MARGIN // 2] = _INK
    if reserve > 0:
        picture[_row(reserve), _MARGIN // 2 : 2 * SIDE - _MARGIN // 2 : 4] = _RESERVE
    if sale is not None:
        bids, winner = sale.bid[copy], int(sale.winner[copy])
        _bars(picture[:, :SIDE], sale.valuation[copy], bids)
        if winner >= 0:
            left, right = _columns(winner, len(bids))
            picture[_MARGIN // 4 : _MARGIN // 2, left:right] = _GOLD
            picture[_row(float(sale.price[copy])), _MARGIN // 2 : SIDE - _MARGIN // 2] = _INK
    if valuation is not None:
        _bars(picture[:, SIDE:], valuation, np.zeros_like(valuation))
    return picture


def ansi(sale: Sale | None, valuation: Array | None, copy: int, rounds: int) -> str:
    """One copy in letters: a line for each bidder of the latest round, then one for each valuation now."""
    lines, number = [], 0
    if sale is not None:
        number, winner = int(sale.round[copy]), int(sale.winner[copy])
        lines.append(f"round {number} of {rounds}: {f'sold at {sale.price[copy]:.3f}' if winner >= 0 else 'not sold'}")
        for a, (value, bid, paid) in enumerate(zip(sale.valuation[copy], sale.bid[copy], sale.paid[copy], strict=True)):
            mark = "  won" if a == winner else ""
            lines.append(f"bidder_{a}  value {value:.3f}  bid {bid:.3f}  paid {paid:.3f}{mark}")
    if valuation is not None:
        lines.append(f"round {number + 1} of {rounds}: on sale")
        lines += [f"bidder_{a}  value {value:.3f}  {_bar(value)}" for a, value in enumerate(valuation)]
    return "\n".join(lines)


def _bar(value: float) -> str:
    return "#" * round(20 * float(value))


def _row(height: float) -> int:
    """The picture's row at a height between 0 and 1."""
    return round(HEIGHT - _MARGIN - height * (HEIGHT - 2 * _MARGIN))


def _columns(bidder: int, bidders: int) -> tuple[int, int]:
    """From where to where a bidder's bar stands on its side."""
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
