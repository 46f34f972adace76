"""What Open WebUI sends, from its source (routers/openai.py, utils/payload.py): the program itself is in `test_open_webui_page.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server_process import ServerProcess

HEADERS = {
    "Authorization": "Bearer a-name-of-its-own",
    "X-OpenWebUI-User-Name": "Ada",
    "X-OpenWebUI-User-Role": "user",
}
MESSAGES = [{"role": "user", "content": "Count from 1 to 500."}]
CHOSEN: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 0.9,
    "frequency_penalty": 0.0,
    "seed": 0,
    "stop": [" 12"],
}


@pytest.fixture
def webui(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/v1", headers=HEADERS, timeout=60) as client:
        yield client


def test_a_connection_is_verified_and_lists_the_model(webui: httpx.Client) -> None:
    answer = webui.get("/models")
    assert answer.status_code == 200
    model, translator = answer.json()["data"]
    assert translator["id"] == "midstream-translator"
    assert (model["id"], model.get("name", model["id"])) == ("midstream-demo", "midstream-demo")


def test_a_chat_is_streamed_with_the_parameters_of_the_page(webui: httpx.Client) -> None:
    system = {"role": "system", "content": "You are a helpful assistant."}
    usage = {"stream_options": {"include_usage": True}}
    body = {"model": "midstream-demo", "messages": [system, *MESSAGES], "stream": True, **usage, **CHOSEN}
    with webui.stream("POST", "/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, done = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert text == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"
    assert chunks[-1]["usage"]["completion_tokens"] >= 22


def test_a_chat_with_the_tools_of_the_page_is_answered(webui: httpx.Client) -> None:
    """Each message of the page carries them, whether the model can call or not."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Looks something up.",
                "parameters": {
                    "type": "object",
                    "properties": {"query": {"type": "string", "description": "What to look for."}},
                    "required": ["query"],
                },
            },
        }
        for name in ("search_web", "fetch_url", "get_current_timestamp")
    ]
    body = {"model": "midstream-demo", "messages": MESSAGES, "stream": True, "tools": tools, "max_tokens": 8}
    with webui.stream("POST", "/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        *events, done = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert done == "[DONE]"
    ends = [choice["finish_reason"] for event in events for choice in json.loads(event)["choices"]]
    assert ends[-1] in ("stop", "length", "tool_calls")


def test_a_title_is_asked_for_in_one_piece(webui: httpx.Client) -> None:
    body = {"model": "midstream-demo", "messages": MESSAGES, "stream": False, "max_completion_tokens": 8}
    answer = webui.post("/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"]


def test_a_model_that_is_not_there_is_told_as_json(webui: httpx.Client) -> None:
    answer = webui.post("/chat/completions", json={"model": "gone", "messages": MESSAGES, "stream": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
