"""The compliance runner of Open Responses itself, unchanged, against a real server.

No registry has it: `MIDSTREAM_OPEN_RESPONSES` names a checkout of `openresponses/openresponses`. What its tests state is in
`tests/app/test_open_responses.py`, which needs none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.environments import HERE, NotInstallable, node_modules
from tests.clients.tools import scripted_server
from tests.server_process import serving

CHECKOUT = os.environ.get("MIDSTREAM_OPEN_RESPONSES")
SHOWN = "image-input"
"""No model here sees, and a server of its own would have to: what is told of it is a sentence."""
FEWEST = 17
"""It had as many in July 2026."""

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        CHECKOUT is None, reason="MIDSTREAM_OPEN_RESPONSES names no checkout of openresponses"
    ),
]


@pytest.fixture
def runner(tmp_path: Path) -> list[str]:
    """The runner's command, in a copy of the checkout beside what it needs."""
    try:
        modules = node_modules(print, HERE / "openresponses.json")
    except NotInstallable as why:
        pytest.skip(f"what the runner needs could not be installed: {why}")
    copy = tmp_path / "runner"
    for folder in ("bin", "src"):
        shutil.copytree(Path(CHECKOUT or "") / folder, copy / folder)
    (copy / "node_modules").symlink_to(modules)
    return [str(modules / ".bin" / "bun"), "run", str(copy / "bin" / "compliance-test.ts")]


def test_all_but_images_pass(runner: list[str], tmp_path: Path) -> None:
    with serving(tmp_path, command=scripted_server.COMMAND) as server:
        requested = [
            "--base-url",
            f"{server.url}/v1",
            "--api-key",
            "mine",
            "--model",
            "midstream-demo",
            "--json",
        ]
        ran = subprocess.run([*runner, *requested], capture_output=True, text=True, timeout=300, check=False)
    reported = {one["id"]: one for one in json.loads(ran.stdout)["results"]}
    failed = {name: one.get("errors") for name, one in reported.items() if one["status"] == "failed"}
    assert failed.keys() <= {SHOWN}, failed
    assert sum(one["status"] == "passed" for one in reported.values()) >= FEWEST - len(failed)
