"""The server's own TLS: encrypted sockets behave like plain ones."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trustme

from app.server import RenewableContext, tls_of
from app.settings import Settings, SettingsError
from tests.app.in_process_service import InProcessService, serving


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The settings that name a certificate for this machine, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    return {"tls_cert": str(folder / "cert.pem"), "tls_key": str(folder / "key.pem")}


@pytest.fixture
def trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def handshake(running: InProcessService, tls: ssl.SSLContext) -> ssl.SSLObject:
    _, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=tls)
    writer.close()
    done = writer.get_extra_info("ssl_object")
    assert isinstance(done, ssl.SSLObject)
    return done


async def test_a_chat_runs_over_tls(files: dict[str, Any], trust: ssl.SSLContext, tmp_path: Path) -> None:
    async with serving(tmp_path, **files) as running:
        assert running.ws_url.startswith("wss://")
        async with running.socket(ssl=trust) as socket:
            await socket.send(type="send", client_msg_id="m", content="Hello!")
            assert (await socket.until("done"))[-1]["reason"] == "stop"


async def test_a_renewed_certificate_is_taken_by_new_connections_and_a_bad_one_by_none(
    authority: trustme.CA, trust: ssl.SSLContext, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    authority.issue_cert("127.0.0.1", common_name="old").private_key_and_cert_chain_pem.write_to_path(both)
    async with serving(tmp_path, tls_cert=str(both)) as running, running.socket(ssl=trust) as socket:
        authority.issue_cert("127.0.0.1", common_name="new").private_key_and_cert_chain_pem.write_to_path(
            both
        )
        running.service._reload()
        assert "new" in str((await handshake(running, trust)).getpeercert())
        both.write_bytes(authority.issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
        running.service._reload()
        context = running.service._server.config.ssl
        assert isinstance(context, RenewableContext)
        with pytest.raises(SettingsError):  # as if the files change between two checks
            context.read(*context._files)
        assert "new" in str((await handshake(running, trust)).getpeercert())
        await socket.send(type="send", client_msg_id="m", content="Hello!")
        assert (await socket.until("done"))[-1]["reason"] == "stop"


async def test_old_versions_are_not_spoken(
    files: dict[str, Any], trust: ssl.SSLContext, tmp_path: Path
) -> None:
    async with serving(tmp_path, **files) as running:
        assert (await handshake(running, trust)).version() == "TLSv1.3"
        trust.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await handshake(running, trust)).version() == "TLSv1.2"
        trust.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            trust.minimum_version = trust.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await handshake(running, trust)


async def test_a_reader_that_stops_reading_is_let_go_over_tls_too(
    files: dict[str, Any], trust: ssl.SSLContext, tmp_path: Path
) -> None:
    async with serving(tmp_path, **files) as running:
        config = running.service._server.config
        config.ws_ping_interval, config.ws_ping_timeout = 0.1, 0.3
        running.engine.script(["x" * 1024] * 600)
        sock = await running.small_buffer_socket()
        async with running.socket(ssl=trust, sock=sock, max_queue=1, ping_interval=None) as silent:
            await silent.send(type="send", client_msg_id="m", content="Much, please.")
            for _ in range(20):
                await silent.send(type="ping")
            await running.service._lifecycle._manager.emptied()
            assert (await silent.closed())[0] == 1006


async def test_a_peer_that_does_not_shake_hands_is_let_go(files: dict[str, Any], tmp_path: Path) -> None:
    async with serving(tmp_path, request_s=0.1, **files) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"\x16\x03\x01")
        assert await reader.read() == b""
        writer.close()


def test_a_certificate_and_its_key_may_be_in_one_file(files: dict[str, Any], tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(Path(files["tls_cert"]).read_text() + Path(files["tls_key"]).read_text())
    assert tls_of(Settings.read({}, {"tls_cert": str(both)}))


def test_a_key_that_needs_a_password_stops_the_start_and_asks_nobody(
    files: dict[str, Any], tmp_path: Path
) -> None:
    locked = tmp_path / "locked.pem"
    command = [
        "openssl",
        "pkey",
        "-aes256",
        "-passout",
        "pass:secret",
        "-in",
        files["tls_key"],
        "-out",
        str(locked),
    ]
    subprocess.run(command, check=True)
    with pytest.raises(SettingsError, match="needs a password"):
        tls_of(Settings.read({}, files | {"tls_key": str(locked)}))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tls_cert": "/nowhere/cert.pem"}, r"MIDSTREAM_TLS_CERT \(--tls-cert\) /nowhere/cert.pem"),
        ({"tls_cert": __file__}, "in the same file can't be used"),
        ({"tls_key": "/nowhere/key.pem"}, "there is no MIDSTREAM_TLS_CERT"),
    ],
)
def test_files_that_are_no_certificate_stop_the_start(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        tls_of(Settings.read({}, given))
