"""The HTTP doors answer as `/openapi.json` says, whatever is asked of them."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Runner
from tests.server_process import ServerProcess

EXAMPLES = "100"  # of each operation, beside what the coverage phase makes


@pytest.mark.clients
@pytest.mark.timeout(900)
def test_what_is_answered_is_what_is_described(run_script: Runner, server: ServerProcess) -> None:
    done = run_script("schemathesis_doors.py", server.url, EXAMPLES=EXAMPLES)["run"]
    assert done["status"] == 0, done["report"]
