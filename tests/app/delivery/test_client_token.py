"""The client of pages and of Node, where its site gives no token to connect with, or its platform no WebSocket."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.docs.documents import ROOT

CLIENT = (ROOT / "app" / "page" / "client" / "chat-client.js").as_uri()
SCRIPT = f"""
import {{ ChatClient }} from "{CLIENT}";
let asked = 0;
const token = async () => {{ if (asked++ === 0) throw new TypeError("fetch failed"); return "a token"; }};
const told = [];
class Socket {{
  constructor() {{ queueMicrotask(() => this.onopen()); }}
  send(data) {{ console.log(JSON.stringify({{ told, hello: JSON.parse(data) }})); process.exit(); }}
  close() {{}}
}}
const client = new ChatClient({{ url: "ws://127.0.0.1:1/v1/ws", credentials: {{ token }}, Socket }});
client.addEventListener("error", ({{ detail }}) => told.push([detail.code, detail.message]));
client.addEventListener("connection", ({{ detail }}) => told.push(detail.state));
client.connect();
"""


def test_a_token_that_can_not_be_had_is_a_failed_attempt_and_the_next_one_comes_soon() -> None:
    """It was a rejection that nobody handled, which ends a process."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no node here")
    run = subprocess.run(
        [node, "--input-type=module", "-e", SCRIPT], capture_output=True, text=True, timeout=30, check=True
    )
    seen = json.loads(run.stdout)
    assert seen["told"] == ["connecting", ["no_token", "TypeError: fetch failed"], "reconnecting"]
    assert seen["hello"]["token"] == "a token"


def test_where_there_is_no_websocket_it_says_what_to_give() -> None:
    """As in Node 20. It was "this[#Socket] is not a constructor", at the first attempt."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no node here")
    script = f"""
        delete globalThis.WebSocket;
        import("{CLIENT}").then(({{ ChatClient }}) => {{
          try {{ new ChatClient({{ url: "ws://127.0.0.1:1/v1/ws" }}); }} catch (error) {{ console.log(error.message); }}
        }});
    """
    run = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=30, check=True)
    assert "give one as `Socket`" in run.stdout
