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

PATIENCE_S = 120
KEY = f"sk-{secrets.token_hex(32)}"
MODEL = "midstream-demo"
COUNT = [{"role": "user", "content": "Count from 1 to 500."}]


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
        try:
            url = f"http://127.0.0.1:{port}"
            wait(f"{url}/health/liveliness", process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    sys.exit(f"The proxy does not answer:\n{log.read_text()[-3000:]}")


def chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=COUNT, temperature=0, stop=" 12")
    text = whole.choices[0].message.content
    print(json.dumps({"did": "whole", "text": text, "tokens": whole.usage.completion_tokens}))

    text, tokens = "", None
    usage = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model=MODEL, messages=COUNT, temperature=0, stop=" 12", stream=True, stream_options=usage
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    print(json.dumps({"did": "stream", "text": text, "tokens": tokens}))

    text = ""
    with client.chat.completions.create(model=MODEL, messages=COUNT, temperature=0, stream=True) as stream:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if " 20," in text:
                break
    print(json.dumps({"did": "left", "text": text}))

    try:
        client.chat.completions.create(model="another", messages=COUNT)
    except openai.NotFoundError as error:
        print(json.dumps({"did": "refused", "why": str(error)}))


def respond(client: openai.OpenAI) -> None:
    """Responses by the proxy, and behind each of them a chat: who is refused takes nothing from others."""
    hello = [{"role": "user", "content": "Hello!"}]

    def chats() -> bool:
        return bool(client.chat.completions.create(model=MODEL, messages=hello).choices[0].message.content)

    first = client.responses.create(model=MODEL, input="Hello!")
    print(json.dumps({"did": "responded", "text": first.output_text, "chats": chats()}))

    text = ""
    for event in client.responses.create(model=MODEL, input="Hello!", stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
    print(json.dumps({"did": "responded_in_parts", "text": text, "chats": chats()}))

    count = client.responses.create(model=MODEL, input="Count from 1 to 500.", temperature=0, stream=True)
    text = ""
    with count as events:
        for event in events:
            text += event.delta if event.type == "response.output_text.delta" else ""
            if " 20," in text:
                break
    print(json.dumps({"did": "responding_left", "text": text, "chats": chats()}))

    try:
        client.responses.create(model=MODEL, input="Hello!", max_output_tokens=10**9)
    except openai.BadRequestError as error:
        print(json.dumps({"did": "not_responded", "why": str(error), "chats": chats()}))


with proxy() as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
    chat(client)
    respond(client)
