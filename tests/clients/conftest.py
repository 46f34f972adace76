"""How a client's script is run, and a server that speaks TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tests.clients.environments import HERE, Notify, NotInstallable, command_of
from tests.clients.scripts import PATIENCE_S, Lines, run
from tests.server_process import ServerProcess, serving

Runner = Callable[..., Lines]
GRAMMAR = HERE.parent / "e2e" / "demo.jsgf"


@pytest.fixture(scope="session")
def notify(pytestconfig: pytest.Config) -> Notify:
    """Prints a line while tests run."""

    def notify(line: str) -> None:
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        terminal = pytestconfig.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:  # a worker of xdist has none
            with capture.global_and_fixture_disabled():
                terminal.write_line(line)

    return notify


@pytest.fixture(scope="session")
def run_script(notify: Notify) -> Runner:
    """Runs a script by its name; skips the test where what it needs can't be installed."""

    def run_script(name: str, url: str, *, patience_s: float = PATIENCE_S, **environ: str) -> Lines:
        try:
            command = command_of(HERE / name, notify)
        except NotInstallable as why:
            notify(f"SKIPPED: what {name} needs could not be installed: {why}")
            pytest.skip(f"what {name} needs could not be installed: {why}")
        return run(command, url, environ=environ, patience_s=patience_s)

    return run_script


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server with the demo model that hears and speaks."""
    environ = {
        "MIDSTREAM_SPEECH": "both",
        "MIDSTREAM_SPEECH_RECOGNIZER": str(GRAMMAR),
        "MIDSTREAM_LIMITS": "message_rate=1000",
    }
    with serving(tmp_path_factory.mktemp("speaking"), environ) as server:
        yield server


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a certificate authority of the test's own, with a certificate for this machine beside it."""
    folder = tmp_path_factory.mktemp("authority")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        folder / "own.pem"
    )
    return folder / "authority.pem"


@pytest.fixture(scope="session")
def tls_server(authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server with the demo model that speaks TLS."""
    trust = ssl.create_default_context(cafile=authority)
    environ = {"MIDSTREAM_TLS_CERT": str(authority.with_name("own.pem"))}
    with serving(tmp_path_factory.mktemp("tls_server"), environ, trust=trust) as shared:
        yield shared
