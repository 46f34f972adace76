"""How large the code is, and how much of it one turn runs through: `python -m tools.measure`.

Prints a table, with a committed result next to it. `--traced` also starts the service, has a turn and a cancel over a
socket, and counts the product's modules whose functions ran and the calls from one file into another, in all processes; it
needs Python 3.12 or newer for the service. `--check` compares with the marks, which only fall; exit status 1: one is missed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.measure.path import TracedPath, TraceFailed, traced
from tools.measure.source import Counts, count

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "design" / "measurements.json"
MARKS = Path(__file__).parent / "marks.json"


def main() -> int:
    """Measure, print, and write or compare what was asked for."""
    options = _options()
    root = options.root.resolve()
    counts = count(root)
    rows = table(counts)
    paths: dict[str, TracedPath] = {}
    if options.traced:
        environ = dict(pair.partition("=")[::2] for pair in options.env)
        try:
            paths = traced(root, options.python, shlex.split(options.serve), environ)
        except TraceFailed as error:
            print(error, file=sys.stderr)
            return 2
        rows |= path_table(paths)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    before = results.get(options.against, {}).get("counts", {})
    if not options.check:
        print(as_text(rows, before, options.against))
    if options.list:
        print(*_listed(counts, paths), sep="\n")
    if options.label:
        results[options.label] = {
            "commit": _commit(root),
            "counts": rows,
            **({"paths": _details(paths)} if paths else {}),
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return _check(rows) if options.check else 0


def table(counts: Counts) -> dict[str, int]:
    """Return all counts by name, such as `product.lines`. Pure."""
    document = asdict(counts)
    groups = ("product", "tests", "tooling", "wiring")
    rows = {f"{group}.{name}": value for group in groups for name, value in document[group].items()}
    return rows | {f"other.{language}": lines for language, lines in counts.other_languages.items()}


def path_table(paths: dict[str, TracedPath]) -> dict[str, int]:
    """Return the counts of traced paths by name, such as `path.turn.modules`. Pure."""
    return {
        f"path.{name}.{what}": value
        for name, path in paths.items()
        for what, value in (
            ("modules", path.module_count),
            ("calls_across_files", path.call_count),
            ("pairs_of_files", path.edge_count),
        )
    }


def missed(rows: dict[str, int], marks: dict[str, int]) -> list[str]:
    """Return a line for each mark that a count is above. Pure."""
    return [
        f"{name}: {rows[name]:,} is above the mark of {mark:,}."
        for name, mark in marks.items()
        if name in rows and rows[name] > mark
    ]


def as_text(rows: dict[str, int], before: dict[str, int], label: str) -> str:
    """Return a table of counts, with earlier ones and the ratio if there are any. Pure."""
    width = max(map(len, rows))
    lines = [f"{'':<{width}}  {'now':>9}" + (f"  {label:>9}  ratio" if before else "")]
    for name, value in rows.items():
        line = f"{name:<{width}}  {value:>9,}"
        if earlier := before.get(name):
            line += f"  {earlier:>9,}  {value / earlier:5.2f}"
        lines.append(line)
    return "\n".join(lines)


def _check(rows: dict[str, int]) -> int:
    marks = json.loads(MARKS.read_text(encoding="utf-8"))
    lines = missed(rows, marks)
    print(*lines, sep="\n")
    if lines:
        print(
            f"Delete something, or change {MARKS.relative_to(ROOT)} and say in the commit why.",
            file=sys.stderr,
        )
    return 1 if lines else 0


def _listed(counts: Counts, paths: dict[str, TracedPath]) -> list[str]:
    lines = [f"{place}: {', '.join(found) or 'nobody'}" for place, found in counts.protocols.items()]
    lines += counts.private_apis
    for name, path in paths.items():
        for process, modules in path.modules.items():
            lines += [f"{name}: {process}: {module}" for module in modules]
    return lines


def _details(paths: dict[str, TracedPath]) -> dict[str, Any]:
    return {
        name: {
            "modules": sorted({one for modules in path.modules.values() for one in modules}),
            "calls": path.calls,
        }
        for name, path in paths.items()
    }


def _commit(root: Path) -> str:
    ran = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.measure", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout that is measured (this one)")
    parser.add_argument("--traced", action="store_true", help="also trace a turn and a cancel")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the traced service")
    parser.add_argument("--serve", default="app serve", help="module and arguments that start it (app serve)")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a setting of the traced service"
    )
    parser.add_argument(
        "--against", default="0b740540", help="the committed result to compare with (0b740540)"
    )
    parser.add_argument("--label", help=f"write the result under this name to {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--list", action="store_true", help="also list Protocols, private APIs and modules")
    parser.add_argument("--check", action="store_true", help="print only the marks that are missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
