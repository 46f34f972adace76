"""Which small faults the tests find: `python -m tools.mutants`, resumable, with a result for each of 63 mutants.

Draws seven mutants from each area of `areas.toml`, with the commit's hash as seed, among the lines that tests run. Each is
put into a checkout of its own, where the test files that run its line are run until one fails: killed, or survived. First
(`--cover`, once for a commit) all tests are run under coverage, by file, so that it is known which files run which line;
that takes as long as `make coverage`. Exit status 1: fewer than nine in ten were killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coverage.numbits import numbits_to_nums

from tools.mutants.operators import Mutant, mutants

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("clients", "models", "peers", "vllm", "long")
"""Markers of tests that `make test` leaves out."""
AREAS = Path(__file__).parent / "areas.toml"
KILLED_SHARE = 0.9
SLOWEST_S = 600  # for one mutant; a mutant that hangs is killed
Lines = dict[str, dict[int, set[str]]]
"""Module, line: the test files that run it."""


def main() -> int:
    """Cover, draw, run, and print what survived."""
    options = _options()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    commit = _git("rev-parse", options.commit).strip()
    tree = work / commit[:12]
    if not tree.exists():
        _git("worktree", "add", "--detach", str(tree), commit)
        for ignored in (".venv", *_built()):
            (tree / ignored).symlink_to(ROOT / ignored)
    covered = work / f"{commit[:12]}.coverage"
    if options.cover or not covered.exists():
        _cover(tree, covered, options.jobs)
    lines = _covered_lines(covered, tree)
    drawn = draw(tree, commit, lines)
    results_file = work / f"{commit[:12]}.json"
    results: dict[str, str] = json.loads(results_file.read_text()) if results_file.exists() else {}
    for number, (area, mutant) in enumerate(drawn, 1):
        if options.draw_only:
            print(
                area, mutant.name, f"-> {mutant.new!r}", f"({len(lines[mutant.module][mutant.line])} files)"
            )
        elif mutant.name not in results:
            began = time.monotonic()
            results[mutant.name] = _run(tree, mutant, lines[mutant.module][mutant.line], options.jobs)
            results_file.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"{number}/{len(drawn)} {area}: {mutant.name}: {results[mutant.name]} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    if options.draw_only:
        return 0
    survivors = [(area, one) for area, one in drawn if results[one.name] == "survived"]
    print(f"{len(drawn) - len(survivors)} of {len(drawn)} killed")
    for area, one in survivors:
        print(f"survived, {area}: {one.name} -> {one.new!r}")
    return int(len(drawn) - len(survivors) < KILLED_SHARE * len(drawn))


def draw(tree: Path, commit: str, lines: Lines) -> list[tuple[str, Mutant]]:
    """Return the mutants of each area that are drawn for a commit, among lines that some test file runs."""
    config = tomllib.loads(AREAS.read_text(encoding="utf-8"))
    chance = random.Random(commit)
    drawn: list[tuple[str, Mutant]] = []
    for area, patterns in config["areas"].items():
        candidates = [
            one
            for module in _modules(tree, patterns)
            for one in mutants(module, (tree / module).read_bytes())
            if lines[module][one.line]
        ]
        drawn += [(area, one) for one in chance.sample(candidates, config["per_area"])]
    return drawn


def _modules(tree: Path, patterns: list[str]) -> list[str]:
    """Return an area's modules in a checkout."""
    here = {str(path.relative_to(tree)) for pattern in patterns for path in tree.glob(pattern)}
    return sorted(one for one in here if not one.endswith("__init__.py"))


def _cover(tree: Path, into: Path, jobs: int) -> None:
    """Run all tests of a checkout under coverage. A process is noted under the test during which it began. Raises CalledProcessError."""
    data = into.with_suffix(".parts")
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    config = into.with_suffix(".rc")
    config.write_text(
        "[run]\nparallel = true\nsigterm = true\nconcurrency = thread\npatch = _exit\n"
        "context = ${PYTEST_CURRENT_TEST-}\nsource = app,connections,sessions,engine,speech\n"
        f"data_file = {data / 'data'}\n",
        encoding="utf-8",
    )
    files = sorted(str(path.relative_to(tree)) for path in (tree / "tests").rglob("test_*.py"))
    environment = _environment(tree) | {"COVERAGE_PROCESS_START": str(config)}

    def covered(file: str) -> None:
        # A process for each file: its own lines are noted under the name of the file, its children's under that of the test.
        done = _bounded([*_pytest(tree, 0), file], tree, environment | {"PYTEST_CURRENT_TEST": file})
        print(f"{file}: {done}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(covered, files))
    subprocess.run(
        [tree / ".venv" / "bin" / "coverage", "combine", "-q", f"--rcfile={config}", f"--data-file={into}", data],
        cwd=tree, env=_environment(tree), check=True,
    )  # fmt: skip


def _covered_lines(data: Path, tree: Path) -> Lines:
    """Read which test files run which line."""
    lines: Lines = defaultdict(lambda: defaultdict(set))
    with sqlite3.connect(data) as store:
        rows = store.execute(
            "SELECT file.path, context.context, line_bits.numbits FROM line_bits"
            " JOIN file ON file.id = file_id JOIN context ON context.id = context_id"
        )
        for path, context, bits in rows:
            test = context.partition("::")[0].partition(" ")[0]
            if test and Path(path).is_relative_to(tree):
                for line in numbits_to_nums(bits):
                    lines[str(Path(path).relative_to(tree))][line].add(test)
    return lines


def _run(tree: Path, mutant: Mutant, files: set[str], jobs: int) -> str:
    """Put a mutant into the checkout, run the files that run its line, and take it out again."""
    path = tree / mutant.module
    before = path.read_bytes()
    area = Path(mutant.module).parent.name
    near = sorted(files, key=lambda file: (area not in file, Path(mutant.module).stem not in file, file))
    try:
        _write(path, mutant.of(before))
        return (
            "survived"
            if _bounded([*_pytest(tree, jobs), "-x", *near], tree, _environment(tree)) == 0
            else "killed"
        )
    finally:
        _write(path, before)


def _write(path: Path, source: bytes) -> None:
    """Write a module, and drop its bytecode: that is told from a newer one by seconds only."""
    path.write_bytes(source)
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        stale.unlink()


def _bounded(command: list[str], tree: Path, environment: dict[str, str]) -> int:
    """Run a command and end it with all that it started after some time. Returns its exit status, -1 if it took too long."""
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            return process.wait(SLOWEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return -1


def _pytest(tree: Path, jobs: int) -> list[str]:
    """Return the command that runs tests as `make test` does; an older checkout knows fewer markers."""
    known = (tree / "pyproject.toml").read_text(encoding="utf-8")
    chosen = " and ".join(f"not {marker}" for marker in ELSEWHERE if f'"{marker}: ' in known)
    spread = ["-n", str(jobs), "--dist", "loadfile"] if jobs else []
    python = str(tree / ".venv" / "bin" / "python")
    return [python, "-m", "pytest", "-q", "--timeout", "120", "-p", "no:cacheprovider", "-m", chosen, *spread]


def _environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"}


def _built() -> list[str]:
    """Return what a checkout needs that git ignores: the compiled kernels."""
    return [str(path.relative_to(ROOT)) for path in (ROOT / "engine").glob("*.so")]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--commit", default="HEAD", help="what is changed, in a checkout of its own (HEAD)")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".cache" / "mutants", help="folder for checkouts and results"
    )
    parser.add_argument("--cover", action="store_true", help="note anew which test files run which lines")
    parser.add_argument("--draw-only", action="store_true", help="print the drawn mutants, and run none")
    parser.add_argument("--jobs", type=int, default=2, help="test files at once (2)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
