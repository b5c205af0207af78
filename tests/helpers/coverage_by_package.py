"""Prints the share of lines that the latest `make coverage` ran, by package. Compiled functions are left out."""

from collections import Counter
from pathlib import Path

import coverage

ROOT = Path(__file__).parent.parent.parent


def main() -> None:
    data = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"), data_file=str(ROOT / ".coverage"))
    data.load()
    lines, missed = Counter(), Counter()
    for file in data.get_data().measured_files():
        parts = Path(file).parts
        package = parts[parts.index("coterie") + 1].removesuffix(".py")
        _, statements, _, missing, _ = data.analysis2(file)
        for name in (package, "total"):
            lines[name] += len(statements)
            missed[name] += len(missing)
    print(f"{'package':12} {'lines':>7} {'run':>6}")
    for name in sorted(lines, key=lambda name: (name == "total", name)):
        print(f"{name:12} {lines[name]:>7} {1 - missed[name] / max(lines[name], 1):>6.1%}")


if __name__ == "__main__":
    main()
