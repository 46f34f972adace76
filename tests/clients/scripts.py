"""Runs a client's script against a server, and gives what it said: one JSON object a line, named by `did`."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 300

Lines = dict[str, dict[str, Any]]


def run(
    command: Sequence[str],
    url: str,
    *,
    environ: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> Lines:
    """What the script said, by what it did. The key is one that no other run has."""
    done = subprocess.run(
        command,
        env=_clean()
        | {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": uuid.uuid4().hex}
        | dict(environ or {}),
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line.pop("did"): line for line in lines}


def _clean() -> dict[str, str]:
    """The environment without what would lead a client to another server, or have it ask the internet."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LITELLM_"))}
    ours |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return ours | {"PYTHONPATH": str(Path(__file__).parent)}  # for `shared.py`
