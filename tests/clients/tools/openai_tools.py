"""OpenAI's Python client: a tool by hand, in a stream too, and replies that are read into types."""

import json
import os

import openai
from openai import pydantic_function_tool
from person import Person
from pydantic import BaseModel
from shared import AS_JSON, MODEL, QUESTION, WEATHER, say


class get_weather(BaseModel):  # noqa: N801 - the tool has the name of the class
    """Say what the weather is."""

    city: str


client = openai.OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
REQUEST = {"model": MODEL, "tools": [pydantic_function_tool(get_weather)], "temperature": 0}


def whole(messages):
    return client.chat.completions.create(**REQUEST, messages=messages).choices[0].message


def streamed(messages):
    with client.chat.completions.stream(**REQUEST, messages=messages) as stream:
        return stream.get_final_completion().choices[0].message


for did, ask in (("tool", whole), ("streamed", streamed)):
    messages = [{"role": "user", "content": QUESTION}]
    first = ask(messages)
    (call,) = first.tool_calls
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": WEATHER}]
    called = [[call.function.name, json.loads(call.function.arguments)]]
    say(did, called=called, text=ask(messages).content)

prompt = [{"role": "user", "content": AS_JSON}]
json_client = openai.OpenAI(base_url=os.environ["JSON_BASE_URL"])
parsed = json_client.chat.completions.parse(
    model=MODEL, messages=prompt, response_format=Person, temperature=0
)
say("held", **{"is": parsed.choices[0].message.parsed.model_dump()})
