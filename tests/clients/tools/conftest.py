"""The server that the scripts here talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.tools import scripted_server
from tests.server_process import ServerProcess, serving


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A gateway over an engine that calls what it is shown."""
    with serving(tmp_path_factory.mktemp("scripted"), command=scripted_server.COMMAND) as shared:
        yield shared
