"""Images and text renderings of auctions, in NumPy and Pillow's font.

A light bar shows a bidder's valuation between 0 and 1, the dark bar inside it the bid. The left half shows the latest
round, with a golden mark over the winner and the price as a line; the right half shows the item on sale now, and after
the last round the item of that round, so that bars do not jump from one half to the other. Headings, scale and the
bidders' numbers are there from the first frame on, at the same places.
"""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array
from coterie.core.world import Sign
from coterie.worlds.auction.kernels import Round
from coterie.worlds.drawing import AGENT_COLOURS, write_centred, write_lines

HEIGHT, SIDE = 320, 320  # pixels of one half of an image
_TOP, _BOTTOM, _LEFT, _RIGHT = 60, 292, 36, 308  # of the bars in a half: rows of 1 and 0, first and last column
_MARK = slice(44, 50)  # rows of the winner's mark
_FONT = 14
_NARROW = 16  # pixels of a bar below which bidders are not numbered
_PAPER = np.array([250, 248, 243], np.float32)
_INK = np.array([60, 62, 70], np.float32)
_SCALE = np.array([136, 134, 128], np.float32)
_LINE = np.array([226, 222, 212], np.float32)
_RESERVE = np.array([176, 172, 162], np.float32)
_GOLD = np.array([240, 178, 40], np.float32)


def frame(latest: Round | None, valuation: Array | None, copy: int, reserve: float) -> Array:
    """An image of one copy, `[320, 640, 3]` uint8; the left half has no bars before the first round."""
    picture = np.empty((HEIGHT, 2 * SIDE, 3), np.float32)
    picture[:] = _PAPER
    left, right = picture[:, :SIDE], picture[:, SIDE:]
    if valuation is None and latest is not None:
        valuation = latest.valuation[copy]
    _axes(left, "no round yet" if latest is None else f"latest round: {_result(latest, copy)}", reserve)
    _axes(right, "item on sale", reserve)
    if latest is not None:
        bids, winner = latest.bid[copy], int(latest.winner[copy])
        _bars(left, latest.valuation[copy], bids)
        if winner >= 0:
            first, last = _columns(winner, len(bids))
            left[_MARK, first:last] = _GOLD
            left[_row(float(latest.price[copy])), _LEFT:_RIGHT] = _INK
    if valuation is not None:
        _bars(right, valuation, np.zeros_like(valuation))
        _numbers(left, len(valuation))
        _numbers(right, len(valuation))
    return picture.astype(np.uint8)


def legend(bidders: tuple[str, ...], reserve: float = 0.0) -> tuple[Sign, ...]:
    """The bidders, and what bars and lines mean."""
    signs = []
    for number, name in enumerate(bidders):
        red, green, blue = (int(part) for part in AGENT_COLOURS[number % len(AGENT_COLOURS)])
        signs.append(Sign(name, name, (red, green, blue)))
    gold = (int(_GOLD[0]), int(_GOLD[1]), int(_GOLD[2]))
    dotted = ", dotted: reserve" if reserve > 0 else ""
    meanings = Sign("", f"light bar: valuation, dark bar: bid, line: price{dotted}"), Sign("", "winner", gold)
    return (*signs, *meanings)


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


def _result(latest: Round, copy: int) -> str:
    """The outcome of a copy's latest round, in words."""
    return f"sold at {latest.price[copy]:.2f}" if latest.winner[copy] >= 0 else "not sold"


def _row(height: float) -> int:
    """The image row at a height between 0 and 1."""
    return round(_BOTTOM - height * (_BOTTOM - _TOP))


def _columns(bidder: int, bidders: int) -> tuple[int, int]:
    """First and last column of a bidder's bar."""
    width = (_RIGHT - _LEFT) / bidders
    left = _LEFT + bidder * width
    return round(left + 0.1 * width), max(round(left + 0.9 * width), round(left + 0.1 * width) + 1)


def _axes(side: Array, heading: str, reserve: float) -> None:
    """The heading of a half, its scale, and the reserve price where there is one."""
    write_lines(side, [heading], _FONT, _INK, 12)
    for value in (0.0, 0.5, 1.0):
        side[_row(value), _LEFT:_RIGHT] = _LINE if value else _INK
        write_centred(side, f"{value:g}", _FONT - 2, (_row(value), _LEFT - 16), _SCALE)
    if reserve > 0:
        side[_row(reserve), _LEFT:_RIGHT:4] = _RESERVE


def _numbers(side: Array, bidders: int) -> None:
    """Every bidder's number below its bar, where bars are wide enough."""
    for bidder in range(bidders):
        first, last = _columns(bidder, bidders)
        if last - first >= _NARROW:
            write_centred(side, str(bidder), _FONT, (_BOTTOM + 14, (first + last) / 2), _SCALE)


def _bars(side: Array, valuation: Array, bids: Array) -> None:
    for a, (value, bid) in enumerate(zip(valuation, bids, strict=True)):
        left, right = _columns(a, len(bids))
        colour = AGENT_COLOURS[a % len(AGENT_COLOURS)]
        side[_row(value) : _row(0.0), left:right] = 0.35 * colour + 0.65 * _PAPER
        inset = (right - left) // 4
        side[_row(bid) : _row(0.0), left + inset : right - inset] = colour
