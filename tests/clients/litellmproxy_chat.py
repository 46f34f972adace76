"""LiteLLM's proxy between OpenAI's Python client and the server: a whole reply, a stream, and one that is left in the middle."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
from openai_chat import chat
from shared import MODEL, say

PATIENCE_S = 120
KEY = f"sk-{secrets.token_hex(32)}"


def settings() -> str:
    """The proxy's configuration, as JSON, which is YAML: the server's model, and one that it does not have."""
    place = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    models = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", **place}}
        for name in (MODEL, "another")
    ]
    return json.dumps({"model_list": models, "router_settings": {"num_retries": 0}})


@contextmanager
def proxy() -> Iterator[str]:
    """The address of a running proxy."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "log"
        config.write_text(settings())
        program = str(Path(sys.executable).with_name("litellm"))
        with log.open("w") as file:
            process = subprocess.Popen(
                [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
                stdout=file,
                stderr=file,
                env=os.environ | {"LITELLM_MASTER_KEY": KEY},
            )
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_S
        try:
            while not answers(f"{url}/health/liveliness"):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"The proxy does not answer:\n{log.read_text()[-3000:]}")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def respond(client: openai.OpenAI) -> None:
    """Responses by the proxy, and behind each of them a chat: who is refused takes nothing from others."""
    hello = [{"role": "user", "content": "Hello!"}]

    def chats() -> bool:
        return bool(client.chat.completions.create(model=MODEL, messages=hello).choices[0].message.content)

    first = client.responses.create(model=MODEL, input="Hello!")
    say("responded", text=first.output_text, chats=chats())

    text = ""
    for event in client.responses.create(model=MODEL, input="Hello!", stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
    say("responded_in_parts", text=text, chats=chats())

    count = client.responses.create(model=MODEL, input="Count from 1 to 500.", temperature=0, stream=True)
    text = ""
    with count as events:
        for event in events:
            text += event.delta if event.type == "response.output_text.delta" else ""
            if " 20," in text:
                break
    say("responding_left", text=text, chats=chats())

    try:
        client.responses.create(model=MODEL, input="Hello!", temperature=9)
    except openai.BadRequestError as error:
        say("not_responded", why=str(error), chats=chats())


with proxy() as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
    chat(client)
    respond(client)
