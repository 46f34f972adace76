"""The code of the guide to logging people in, as it stands there, against a real service."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from shutil import which

import pytest

from connections.authentication.access import REFRESH_S, TICKET_S
from connections.authentication.api_keys import MAX_SUBJECT
from connections.authentication.json_web_tokens import LEEWAY_S
from tests.app.in_process_service import InProcessService, serving
from tests.docs.documents import ROOT, prose, run_program, snippets
from tests.jwt_signing import SECRET, token

GUIDE = ROOT / "docs" / "login.md"
SIGN, TALK = snippets(GUIDE, "python")
CHECK, TICKET = [code for code in snippets(GUIDE, "sh") if code.startswith("curl")]
AUDIENCE = re.findall(r"MIDSTREAM_JWT_AUDIENCE=(\w+)", GUIDE.read_text())[0]


def with_server_address(code: str, running: InProcessService) -> str:
    assert "127.0.0.1:8000" in code
    return code.replace("127.0.0.1:8000", f"127.0.0.1:{running.port}")


def curl(code: str, running: InProcessService, chat_token: str) -> list[str]:
    return shlex.split(with_server_address(code, running).replace("$CHAT_TOKEN", chat_token))


async def test_a_token_that_your_server_signs_lets_its_user_in(tmp_path: Path) -> None:
    async with serving(tmp_path, jwt_secret=SECRET, jwt_audience=AUDIENCE) as running:
        status, reported = await run_program(
            sys.executable, "-c", SIGN + with_server_address(TALK, running), CHAT_SECRET=SECRET
        )
    assert (status, reported) == (0, "This reply was written before it was asked for.\n")


@pytest.mark.skipif(which("curl") is None, reason="needs curl")
async def test_a_good_token_is_told_from_a_bad_one_and_gives_a_ticket(tmp_path: Path) -> None:
    async with serving(tmp_path, jwt_secret=SECRET, jwt_audience=AUDIENCE) as running:
        good = token(aud=AUDIENCE)
        assert (await run_program(*curl(CHECK, running, good)))[0] == 0
        assert (await run_program(*curl(CHECK, running, token(aud="another"))))[0] == 22
        ticket = json.loads((await run_program(*curl(TICKET, running, good)))[1])
        assert ticket["ticket"].startswith("mst_")
        assert ticket["expires_in_s"] == TICKET_S
        async with running.socket({"token": ticket["ticket"]}) as socket:
            assert socket.ready["type"] == "ready"


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("1 to {} characters", MAX_SUBJECT),
        ("differ by {} seconds", LEEWAY_S),
        ("has {} seconds", int(REFRESH_S)),
        ('"expires_in_s": {}', TICKET_S),
    ],
)
def test_its_numbers_are_the_codes(words: str, number: int) -> None:
    assert words.format(number) in " ".join(prose(GUIDE).split())
