"""Anthropic's Python client: its tool runner, a tool by hand with what was thought, and a reply that is read into a type."""

import os

import anthropic
from person import Person
from shared import AS_JSON, MODEL, QUESTION, WEATHER, say

REQUEST = {"model": MODEL, "max_tokens": 2000, "extra_body": {"temperature": 0}}
called = []


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """Say what the weather is."""
    called.append(["get_weather", {"city": city}])
    return WEATHER


def server(url):
    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="anything")


client, question = server(os.environ["OPENAI_BASE_URL"]), [{"role": "user", "content": QUESTION}]
for did in ("tool", "streamed"):
    called.clear()
    options = {"tools": [get_weather], "stream": did == "streamed"}
    runner = client.beta.messages.tool_runner(**REQUEST, messages=question, **options)
    text = runner.until_done().content[0].text
    say(did, called=called, text=text)

ask = REQUEST | {"tools": [get_weather.to_dict()], "thinking": {"type": "enabled", "budget_tokens": 1024}}
with client.messages.stream(**ask, messages=question) as stream:
    first = stream.get_final_message()
thinking, _, call = first.content
say("thought", blocks=[block.type for block in first.content], text=thinking.thinking)
result = {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER}
messages = [*question, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
second = client.messages.create(**ask, messages=messages)
say("tool by hand", called=[[call.name, call.input]], text=second.content[0].text)

prompt = [{"role": "user", "content": AS_JSON}]
parsed = server(os.environ["JSON_BASE_URL"]).messages.parse(**REQUEST, messages=prompt, output_format=Person)
say("held", **{"is": parsed.parsed_output.model_dump()})
