"""Draw the pictures of docs/results again from their files of results, in the present style; trains nothing.

    python benchmarks/pictures.py --only ablations-cartpole teacher

Files of earlier versions lack the curves of `learning.py` and `advised.py`: their pictures stay
as they are, and are named at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ablations
import advised
import dagger
import expert
import gpu_teams_study
import instructed
import learning
import shaped
import teacher
import teams

from coterie.studies.auction.report import draw_summary
from coterie.studies.match import show as match_show

Draw = Callable[[dict[str, Any]], bytes]
DRAWN: dict[str, Draw] = {  # file of results -> what draws it; all others are of `learning.py`
    **{f"ablations-{base}": ablations.draw for base in ablations.WHOLE},
    "dagger": dagger.draw,
    "doorkey5-shaped": shaped.draw,
    "expert-doorkey-5": expert.draw,
    "expert-doorkey-8": expert.draw,
    "gridworld-advised": advised.draw,
    "gridworld-competitive-match": lambda found: match_show.draw_matrix(found["players"], found["matrix"]),
    "gridworld-instructed": instructed.draw,
    "teacher": teacher.draw,
    "teams-gpu": gpu_teams_study.draw,
    "teams-plan-path": teams.draw,
}
STUDY = "auction-study"  # one file for the pictures of all its arms


def pictures(folder: Path) -> Iterator[tuple[str, Draw, dict[str, Any]]]:
    """The pictures that can be drawn again: name, what draws it, and its numbers."""
    for file in sorted(folder.glob("*.json")):
        if file.stem in DRAWN:
            found = json.loads(file.read_text())
            if DRAWN[file.stem] is not advised.draw or "curve" in next(iter(found["arms"].values()))[0]:
                yield file.stem, DRAWN[file.stem], found
        elif file.stem == STUDY:
            for arm, found in json.loads(file.read_text()).items():
                yield f"{STUDY}-{arm}", draw_summary, found
        elif file.with_suffix(".png").exists():
            found = json.loads(file.read_text())
            if "charts" in found:
                yield file.stem, learning.draw, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="pictures, without .png (default: all)")
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    done = set()
    for name, draw, found in pictures(options.results):
        if options.only is None or name in options.only:
            (options.results / f"{name}.png").write_bytes(draw(found))
            done.add(name)
            print(name, flush=True)
    left = [file.stem for file in sorted(options.results.glob("*.png")) if file.stem not in done]
    if options.only is None and left:
        print(f"not drawn, since no file has their curves: {', '.join(left)}")


if __name__ == "__main__":
    main()
