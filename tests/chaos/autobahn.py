"""`make autobahn`: the WebSocket conformance suite against bare uvicorn and our server. No case may fail on ours alone.

The suite runs on Python 2.7 alone. If there is none, or the suite can't be installed, the command says so and skips.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos import baseline_server, echo
from tests.server_process import serving

SUITE = "autobahntestsuite==0.8.2"
PLACE = Path(sys.prefix) / "autobahn"
RUN = "import site, sys; site.addsitedir(sys.argv.pop(1)); from autobahntestsuite import wstest; wstest.run()"
"""The start of the suite; `addsitedir` is needed because parts of the suite are namespace packages."""
CASES = ["*"]
LEFT_OUT = ["9.*", "12.*", "13.*"]
"""Messages of many megabytes, which our wire protocol forbids, and compression, which is off."""
FINE = {"OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED"}
LIMIT_S = 900.0

Verdicts = dict[str, str]


def main() -> int:
    """Run; return 1 if a case fails that bare uvicorn passes."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.autobahn", description=__doc__)
    parser.add_argument("--python", help="a Python 2.7 (else looked for on PATH and among pyenv's)")
    parser.add_argument("--cases", nargs="+", default=CASES, help="as the suite names them (all)")
    options = parser.parse_args()
    python = next(filter(_is_27, [options.python] if options.python else _candidates()), None)
    if python is None:
        print("autobahn: skipped, there is no Python 2.7 here.")
        return 0
    if not _installed(python):
        print(f"autobahn: skipped, {SUITE} can't be installed for {python}.")
        return 0
    verdicts = {
        "uvicorn": _verdicts(python, baseline_server.command("echo"), options.cases),
        "ours": _verdicts(python, echo.COMMAND, options.cases),
    }
    for name, found in verdicts.items():
        print(
            f"{name}: {', '.join(f'{count} {what}' for what, count in Counter(found.values()).most_common())}"
        )
    worse = worse_than(verdicts["uvicorn"], verdicts["ours"])
    for case in worse:
        print(f"FAILED: case {case}: {verdicts['ours'].get(case, 'not run')}")
    return 1 if worse else 0


def worse_than(theirs: Verdicts, ours: Verdicts) -> list[str]:
    """Return the cases that bare uvicorn passes and our server fails."""
    return [case for case, verdict in theirs.items() if verdict in FINE and ours.get(case) not in FINE]


def _candidates() -> Iterator[str]:
    yield from filter(None, map(shutil.which, ("python2.7", "python2", "python")))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from (str(found) for found in root.glob("versions/2.7*/bin/python"))


def _is_27(python: str) -> bool:
    reported = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return (reported.stdout + reported.stderr).startswith("Python 2.7")


def _installed(python: str) -> bool:
    """Return whether the suite is installed, after an attempt to install it."""
    if (PLACE / "autobahntestsuite").is_dir():
        return True
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(PLACE),
        SUITE,
    ]
    return subprocess.run(pip, stdout=sys.stderr, check=False).returncode == 0


def _verdicts(python: str, command: Sequence[str], cases: list[str]) -> Verdicts:
    """Return the suite's verdicts on a server, by case. Raises subprocess.SubprocessError."""
    with tempfile.TemporaryDirectory(prefix="midstream-autobahn-") as folder:
        with serving(Path(folder), command=command) as server:
            plan = {
                "outdir": f"{folder}/report",
                "servers": [{"agent": "server", "url": server.ws_url}],
                "cases": cases,
                "exclude-cases": LEFT_OUT,
                "exclude-agent-cases": {},
            }
            (Path(folder) / "plan.json").write_text(json.dumps(plan))
            subprocess.run(
                [python, "-c", RUN, str(PLACE), "-m", "fuzzingclient", "-s", f"{folder}/plan.json"],
                stdout=subprocess.DEVNULL,
                timeout=LIMIT_S,
                check=True,
            )
        report = json.loads((Path(folder) / "report" / "index.json").read_text())
    return {case: found["behavior"] for case, found in report["server"].items()}


if __name__ == "__main__":
    sys.exit(main())
