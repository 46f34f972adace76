"""Anthropic's Python client: a tool by hand, in a stream too, with what was thought, and a reply that is read into a type."""

import json
import os

import anthropic
from person import Person

REQUEST = {"model": "midstream-demo", "max_tokens": 2000, "extra_body": {"temperature": 0}}
TOOL = {
    "name": "get_weather",
    "description": "Say what the weather is.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def server(url):
    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="anything")


def followed(messages, first):
    """The history behind a reply that calls."""
    (call,) = (block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain, 7 °C"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    return [[call.name, call.input]]


client = server(os.environ["OPENAI_BASE_URL"])
ask = REQUEST | {"tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}

messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
first = client.messages.create(**ask, messages=messages)
called = followed(messages, first)
second = client.messages.create(**ask, messages=messages)
print(json.dumps({"did": "tool", "called": called, "text": second.content[0].text}))
kinds = [block.type for block in first.content]
print(json.dumps({"did": "thought", "blocks": kinds, "text": first.content[0].thinking}))

messages = messages[:1]
with client.messages.stream(**ask, messages=messages) as stream:
    called = followed(messages, stream.get_final_message())
with client.messages.stream(**ask, messages=messages) as stream:
    text = stream.get_final_text()
print(json.dumps({"did": "streamed", "called": called, "text": text}))

json_client = server(os.environ["JSON_BASE_URL"])
prompt = [{"role": "user", "content": "Ada is 36 years old. As JSON."}]
parsed = json_client.messages.parse(**REQUEST, messages=prompt, output_format=Person)
print(json.dumps({"did": "held", "is": parsed.parsed_output.model_dump()}))
