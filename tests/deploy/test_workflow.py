"""What runs a change's checks elsewhere: the same script as here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def test_the_workflow_keeps_to_its_schema() -> None:
    program = str(Path(sys.executable).with_name("check-jsonschema"))
    command = [program, "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_workflow_runs_the_script_that_every_change_has_to_pass() -> None:
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    assert job["steps"][-1] == {"run": "bash .ci/run"}
    assert (ROOT / ".ci" / "run").is_file()


def test_the_devcontainer_is_made_by_make() -> None:
    described = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert described["postCreateCommand"].startswith("make install ")
