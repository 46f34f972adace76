"""The code of the README and of the guide to clients, as it stands there, against a real server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.clients.environments import HERE, NotInstallable, command_of
from tests.clients.scripts import PATIENCE_S
from tests.docs.documents import README, ROOT, snippets
from tests.server_process import ServerProcess

CLIENTS = ROOT / "docs" / "clients.md"
JAVASCRIPT = ROOT / "docs" / "javascript-client.md"
ENDPOINTS = ROOT / "docs" / "endpoints.md"
COUNTED = ", ".join(str(number) for number in range(1, 301))
OWN = (pytest.mark.clients, pytest.mark.timeout(900))  # an environment of its own, made at the first run
PRINT_THE_END = """
client.addEventListener("reply", ({ detail: { reply } }) => {
  if (reply.open) return;
  console.log("END", reply.state, reply.done?.reason);
  client.close();
});
"""


def output_of(*command: str, server: ServerProcess, at: Path, **more: str) -> str:
    """What a command prints that ends well."""
    environ = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")} | {
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": uuid.uuid4().hex,
        "PYTHONPATH": str(ROOT),
        **more,
    }
    ran = subprocess.run(
        command, cwd=at, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def with_server_address(code: str, server: ServerProcess) -> str:
    """Code that talks to this server; of the address nothing else is changed."""
    assert "127.0.0.1:8000" in code
    return code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")


def needed(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"NOT TESTED: there is no `{program}` on PATH")
    return path


def test_the_readmes_python_stops_a_reply(server: ServerProcess, tmp_path: Path) -> None:
    (code,) = snippets(README, "python")
    text = output_of(sys.executable, "-c", with_server_address(code, server), server=server, at=tmp_path)
    assert COUNTED.startswith(text)
    assert text.startswith("1, 2, 3,")
    assert " 42," in text


def node_output(code: str, server: ServerProcess, at: Path) -> list[str]:
    """The lines that a program prints that imports the npm package."""
    node = needed("node")
    (at / "node_modules").mkdir()
    (at / "node_modules" / "midstream-client").symlink_to(ROOT / "app" / "page" / "client")
    (at / "chat.mjs").write_text(with_server_address(code, server))
    version = int(re.findall(r"\d+", output_of(node, "--version", server=server, at=at))[0])
    flags = [] if version >= 22 else ["--experimental-websocket"]  # from 22 on it is there without a word
    return output_of(node, *flags, "chat.mjs", server=server, at=at).splitlines()


@pytest.mark.parametrize("number", range(2))
def test_the_programs_of_the_javascript_reference_say_what_stands_there(
    number: int, server: ServerProcess, tmp_path: Path
) -> None:
    code, reported = snippets(JAVASCRIPT, "js")[number], snippets(JAVASCRIPT, "text")[number]
    assert node_output(code, server, tmp_path) == reported.splitlines()


def test_the_readmes_javascript_stops_a_reply(server: ServerProcess, tmp_path: Path) -> None:
    (code,) = snippets(README, "js")
    *texts, end = node_output(code + PRINT_THE_END, server, tmp_path)
    # A machine so busy that nobody was connected in time has the message withdrawn before it was sent.
    assert end in {"END ended cancelled", "END withdrawn undefined"}
    assert all(COUNTED.startswith(text) for text in texts)


def test_the_readmes_curl_streams_a_reply(server: ServerProcess, tmp_path: Path) -> None:
    needed("curl")
    (code,) = [code for code in snippets(README, "sh") if code.startswith("curl")]
    stream = output_of("sh", "-c", with_server_address(code, server), server=server, at=tmp_path)
    assert '"delta":{"content":"Hello' in stream  # words that come at once come as one
    assert stream.endswith("data: [DONE]\n\n")


def test_the_curl_of_the_ai_sdks_door_streams_chunks(server: ServerProcess, tmp_path: Path) -> None:
    needed("curl")
    (code,) = [code for code in snippets(ENDPOINTS, "sh") if "ai-sdk" in code]
    stream = output_of("sh", "-c", with_server_address(code, server), server=server, at=tmp_path)
    assert '{"type":"text-delta","id":"text-1","delta":"Hello' in stream
    assert stream.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("language", "named"),
    [
        ("python", "openai_snippet.py"),
        pytest.param("python", "langchain_snippet.py", marks=OWN),
        pytest.param("js", "node_snippet.mjs", marks=OWN),
    ],
)
def test_the_guides_clients_stream_a_reply(
    language: str, named: str, server: ServerProcess, tmp_path: Path
) -> None:
    package = {"openai": "import openai", "langchain": "langchain_openai", "node": "new OpenAI()"}
    (code,) = [code for code in snippets(CLIENTS, language) if package[named.partition("_")[0]] in code]
    script = tmp_path / named
    script.write_text(code)
    try:
        command = command_of(script, print)
    except NotInstallable as why:
        pytest.skip(f"NOT TESTED: {why}")
    assert output_of(*command, server=server, at=HERE).startswith("Hello")
