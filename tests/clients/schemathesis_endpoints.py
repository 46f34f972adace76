"""Schemathesis: requests made from `/openapi.json`, right and wrong ones, and what comes back held against it.

`PHASES`, `EXAMPLES`, `PATHS` and `SHOWN` say which, how many of each, of which paths, and by whose key; `SHOWN` may be empty.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from shared import say

SERVER = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
SHOWN = os.environ.get("SHOWN", "")
done = subprocess.run(
    [
        Path(sys.executable).parent / "schemathesis",
        "run",
        f"{SERVER}/openapi.json",
        f"--phases={os.environ['PHASES']}",
        f"--max-examples={os.environ['EXAMPLES']}",
        f"--include-path-regex={os.environ['PATHS']}",
        *([f"--header=Authorization: Bearer {SHOWN}"] if SHOWN else []),
        "--generation-deterministic",
        "--exclude-checks=positive_data_acceptance",  # some fields forbid others, which no schema here says
        "--suppress-health-check=all",
        "--request-timeout=60",
        "--no-color",
    ],
    cwd=tempfile.mkdtemp(),  # it leaves a folder wherever it runs
    capture_output=True,
    text=True,
    check=False,
)
say("run", status=done.returncode, report=done.stdout[-8000:] + done.stderr)
