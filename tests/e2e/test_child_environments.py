"""No process that the service starts sees its secrets: some of them read what people send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from engine.machine import without_secrets
from tests.server_process import ServerProcess, children_of, command_of

SECRETS = {
    "MIDSTREAM_JWT_SECRET": "hidden-jwt-secret-of-32-characters",
    "UPSTREAM_API_KEY": "hidden-key",
    "CLOUD_SECRET_ACCESS_KEY": "hidden-cloud",
    "DB_PASSWORD": "hidden-password",
    "PGPASSWORD": "hidden-postgres",
    "MYSQL_PWD": "hidden-mysql",
    "GITHUB_PAT": "hidden-github",
    "AZURE_STORAGE_CONNECTION_STRING": "hidden-azure",
    "DATABASE_URL": "postgres://chat:hidden-login@db/chat",
    "CACHE_URL": "redis://:hidden-cache@db",
}
SEEN = {
    "HF_TOKEN": "for models",
    "HF_TOKEN_PATH": "/run/token",
    "TOKENIZERS_PARALLELISM": "true",
    "LANG": "C.UTF-8",
    "PWD": "/",
    "DOCS_URL": "https://example.org/a:b@c",
}

pytestmark = pytest.mark.skipif(which("espeak-ng") is None, reason="needs espeak-ng")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, {**SECRETS, **SEEN, "MIDSTREAM_SPEECH": "both"})
    server.start()
    yield server
    server.stop()


def descendants(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from descendants(child)


def test_no_child_process_has_a_secret_in_its_environment(server: ServerProcess) -> None:
    assert server.process is not None
    pids = list(descendants(server.process.pid))
    commands = " ".join(map(command_of, pids))
    for name in ("-server unixsocket", "engine.process", "engine.prompts", "speech recognition"):
        assert name in commands
    for pid in pids:
        variables = Path(f"/proc/{pid}/environ").read_text()
        assert "hidden" not in variables, command_of(pid)
        assert "HF_TOKEN=for models" in variables or "-server" in command_of(pid)  # its title covers them


def test_secrets_are_hidden_by_their_names_and_values() -> None:
    wanted = SEEN | {"PATH": "/bin", "KEYBOARD": "us"}
    assert without_secrets(SECRETS | wanted) == wanted
