"""The effect of the operator's filters: over real sockets, with a real store."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from app import logs
from app.settings import SettingsError
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, serving
from tests.app.test_frames import send_and_wait
from tests.sessions.broken_filter import Broken


class Faulty(Broken):
    """Fails at questions, too."""

    async def refuses(self, message: str) -> bool:
        if message.endswith("?"):
            raise LookupError(message)
        return False


def text_of(frames: list[Frame]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


async def test_a_filter_that_fails_refuses_and_the_log_quotes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logging_as_it_was: None
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    logs.set_up(style="json", level="debug")
    path = tmp_path / "filters.toml"
    path.write_text('[filters]\nhooks = ["tests.app.test_filters:Faulty"]')
    async with serving(tmp_path, config=str(path)) as service, service.socket() as socket:
        service.engine.script(["unmistakable"])
        refused = await socket.ask(type="send", client_msg_id="m1", content="unmistakable?")
        assert refused["code"] == "internal"
        *frames, done = await send_and_wait(socket, "Hello.")
        assert (text_of(frames), done["reason"], done["error"]["code"]) == ("", "error", "internal")
    assert log.getvalue().count('"exception":') == 2
    assert "unmistakable" not in log.getvalue()


async def test_a_file_that_can_not_be_used_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "filters.toml"
    path.write_text("[filters.output]\npatterns = ['a*']")
    with pytest.raises(SettingsError, match=r"filters\.toml: \[filters\]: output\.patterns\[0\]"):
        async with serving(tmp_path, ScriptedEngine(), config=str(path)):
            pytest.fail("it started")
