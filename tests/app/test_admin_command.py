"""`midstream admin`, against a real service; and the guide to keys and the admin API, whose commands are run as they stand there."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from app.administration import AdminClient, AdminRequestError
from app.cli import main
from app.keys import add_key
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.test_account import create_user_data
from tests.app.test_replicas import begin
from tests.docs.documents import ROOT, snippets
from tests.jwt_signing import SECRET, token

GUIDE = ROOT / "docs" / "admin.md"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the service's log, which is no output of the command; both run in the same process."""
    with capture_logs():
        yield


@pytest.fixture
async def guarded(keys: Path, operator: str, tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path, ScriptedEngine(), api_keys=str(keys), jwt_secret=SECRET) as running:
        await running.get("/readyz")
        yield running


async def run(*words: str, key: str | None, answer: str | None = None) -> Result:
    """Run the command beside the service."""
    environ = {"CHAT_ADMIN_KEY": key} if key else {}
    return await asyncio.to_thread(CliRunner().invoke, main, ["admin", *words], env=environ, input=answer)


async def test_connections_and_turns_are_shown_and_ended(tmp_path: Path, keys: Path, operator: str) -> None:
    async with serving(
        tmp_path, ScriptedEngine(by_hand=True), api_keys=str(keys), jwt_secret=SECRET
    ) as running:
        url = ("--url", running.url)
        async with running.socket({"token": token(sub="ann"), "client_id": "laptop"}) as socket:
            turn_id = (await begin(socket, running))["turn_id"]
            shown = await run(*url, "connections", key=operator)
            head, row = (line.split() for line in shown.stdout.splitlines())
            assert head[:4] == ["connection_id", "api", "principal", "client_id"]
            assert row[:4] == [socket.ready["connection_id"], "native", "jwt:ann", "laptop"]
            result = await run(*url, "turns", "--json", "--principal", "jwt:ann", key=operator)
            assert [json.loads(line)["turn_id"] for line in result.stdout.splitlines()] == [turn_id]
            stopped = await run(*url, "stop", turn_id, key=operator)
            assert (stopped.exit_code, stopped.stdout) == (0, "The reply was ended.\n")
            assert (await socket.next("done"))["cancel"]["cause"] == "operator"
            ended = await run(*url, "disconnect", "--principal", "jwt:ann", "--json", key=operator)
            assert json.loads(ended.stdout) == {"connections": 1, "silent": []}
            assert (await socket.closed())[0] == 4403
            assert (await run(*url, "connections", key=operator)).stdout.splitlines()[1:] == []


async def test_what_somebody_has_is_exported_and_erased(
    guarded: InProcessService, operator: str, tmp_path: Path
) -> None:
    url, file = ("--url", guarded.url.removeprefix("http://")), tmp_path / "ann.jsonl"
    await create_user_data(guarded, "ann")
    written = await run(*url, "export", "jwt:ann", "--output", str(file), key=operator)
    assert (written.exit_code, "3 conversations" in written.stdout) == (0, True), written.output
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[-1] == {"type": "end", "conversations": 3}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = await run(*url, "erase", "jwt:ann", key=operator, answer="n\n")
    assert (kept.exit_code, "Erase all conversations of jwt:ann?" in kept.output) == (1, True)
    erased = await run(*url, "erase", "jwt:ann", "--yes", "--json", key=operator)
    assert json.loads(erased.stdout) == {"conversations": 3}


@contextmanager
def other_server(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """A server that is not Midstream, by its address. `answer` gives the status and the body for a path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("end", [b"", b'{"type":"end","conversations":1}', b'{"type":"end"}\n'])
async def test_an_export_that_is_cut_off_leaves_no_file(tmp_path: Path, end: bytes) -> None:
    with other_server(lambda _: (200, b'{"type":"conversation"}\n' + end)) as address:
        export = ("export", "jwt:ann", "--output", str(tmp_path / "x"))
        result = await run("--url", address, *export, key="k")
    cut_off = "midstream: The export was cut off; nothing was written.\n"
    assert (result.exit_code, result.stderr, files(tmp_path)) == (1, cut_off, [])


async def test_the_key_may_be_in_a_file(guarded: InProcessService, operator: str, tmp_path: Path) -> None:
    (tmp_path / "admin-key").write_text(f"{operator}\n")
    shown = await run("--url", guarded.url, "--key", f"@{tmp_path / 'admin-key'}", "keys", key=None)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[1].split()[:2] == ["olga", "admin"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("stop", "turn_none"), "No running turn has this ID."),
        (("stop", "a/b"), "does not serve"),
        (("disconnect", "--principal", "jwt:nobody"), "Connection not found."),
        (("erase", "jwt:ann", "--client-id", "laptop", "--yes"), "all devices of a person are one owner"),
    ],
)
async def test_what_the_service_refuses_is_told_in_its_words(
    words: tuple[str, ...], message: str, guarded: InProcessService, operator: str
) -> None:
    result = await run("--url", guarded.url, *words, key=operator)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("midstream: ")
    assert message in result.stderr


async def test_another_key_is_refused_and_not_repeated(guarded: InProcessService, keys: Path) -> None:
    key = add_key(keys, "ann")
    result = await run("--url", guarded.url, "keys", key=key)
    assert (result.exit_code, result.stderr) == (1, "midstream: The admin API requires an admin key.\n")


@pytest.mark.parametrize(
    ("words", "key", "status", "message"),
    [
        (("--url", "127.0.0.1:1", "keys"), "k", 1, "http://127.0.0.1:1 does not answer"),
        (("--url", "http://", "keys"), "k", 1, "does not answer"),
        (("keys",), None, 2, "Give an admin key"),
        (("--key", "@/nowhere/key", "keys"), None, 2, "can't be read"),
        (("disconnect",), "k", 2, "Name either a connection or a --principal."),
        (("disconnect", "conn_1", "--principal", "jwt:ann"), "k", 2, "Name either"),
    ],
)
async def test_what_can_not_be_asked_is_told(
    words: tuple[str, ...], key: str | None, status: int, message: str
) -> None:
    result = await run(*words, key=key)
    assert (result.exit_code, message in result.stderr) == (status, True), result.output


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Create the keys and the limits as the guide says; return its commands for operators, and their key."""
    monkeypatch.chdir(tmp_path)
    make_keys, make_admin, commands, _curl = snippets(GUIDE, "sh")
    for line in (*make_keys.splitlines(), *make_admin.splitlines()):
        command, _, file = line.partition(" > ")
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        if file:
            Path(file).write_text(done.stdout)
    (limits,) = snippets(GUIDE, "toml")
    Path("midstream.toml").write_text(limits)
    return commands, Path("admin-key").read_text().strip()


def test_another_server_is_told_from_this_one(tmp_path: Path) -> None:
    body = {True: b"<html>Welcome!</html>\n", False: b"{}"}
    with other_server(lambda path: (200, body["export" in path])) as address:
        service = AdminClient(address, "key")
        with pytest.raises(AdminRequestError, match="is not a Midstream service"):
            list(service.rows("turns", {}))
        with pytest.raises(AdminRequestError, match="nothing was written"):
            service.export({}, tmp_path / "export")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["turns"], ["turns", "--json"], ["keys"]])
async def test_no_word_of_a_server_commands_the_terminal(words: list[str]) -> None:
    hostile = "olga\x1b]0;x\x07\x9b2J\u202ero"
    columns = ("turn_id", "state", "chars", "principal", "client_id", "conversation_id", "model", "replica")
    turns = {"turns": [dict.fromkeys(columns, hostile)], "next": None, "silent": [hostile]}

    def answer(path: str) -> tuple[int, bytes]:
        refused = path.startswith("/v1/admin/keys")
        payload = {"error": {"message": hostile}} if refused else turns
        return 403 if refused else 200, json.dumps(payload, ensure_ascii=False).encode()

    with other_server(answer) as address:
        result = await run("--url", address, *words, key="key")
    assert "olga" in result.output
    assert all(line.isprintable() for line in result.output.split("\n"))


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("localhost:1", "http://localhost:1"),
        ("[::1]:1", "http://[::1]:1"),
        ("a.invalid:1", "https://a.invalid:1"),
        ("http://a.invalid:1", "http://a.invalid:1"),
    ],
)
def test_an_admin_key_leaves_this_machine_by_tls_unless_said_otherwise(place: str, url: str) -> None:
    with pytest.raises(AdminRequestError, match=re.escape(f"{url} does not answer")):
        AdminClient(place, "key").request("GET", "/turns")


async def test_the_guides_commands_do_what_it_says(guide: tuple[str, str], tmp_path: Path) -> None:
    commands, key = guide
    engine = ScriptedEngine(by_hand=True)
    settings = {"api_keys": "@keys", "jwt_secret": SECRET, "config": "midstream.toml"}
    async with (
        serving(tmp_path, engine, **settings) as running,
        running.socket({"token": token(sub="ann")}) as socket,
    ):
        assert socket.ready["limits"]["messages_per_minute"] == 30
        turn_id = (await begin(socket, running))["turn_id"]
        names = {"turn_3f9a": turn_id, "conn_3f9a": socket.ready["connection_id"]}
        for line in filter(None, commands.splitlines()):
            words = [names.get(word, word) for word in shlex.split(line, comments=True)[2:]]
            done = await run("--url", running.url, *words, key=key)
            assert done.exit_code == 0, (line, done.output)
        assert (await socket.closed())[0] == 4403
