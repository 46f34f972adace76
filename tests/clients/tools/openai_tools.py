"""OpenAI's Python client: a tool by hand, in a stream too, and replies that are read into types."""

import json
import os

import openai
from openai import pydantic_function_tool
from person import Person
from pydantic import BaseModel

MODEL = "midstream-demo"


class get_weather(BaseModel):  # noqa: N801 - the tool has the name of the class
    """Say what the weather is."""

    city: str


client = openai.OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
tools = [pydantic_function_tool(get_weather)]

messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
first = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, temperature=0)
(choice,) = first.choices
(call,) = choice.message.tool_calls
messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain, 7 °C"}]
second = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, temperature=0)
print(
    json.dumps(
        {
            "did": "tool",
            "called": [[call.function.name, json.loads(call.function.arguments)]],
            "text": second.choices[0].message.content,
        }
    )
)

messages = messages[:1]
with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools, temperature=0) as stream:
    final = stream.get_final_completion().choices[0].message
(call,) = final.tool_calls
messages += [final, {"role": "tool", "tool_call_id": call.id, "content": "rain, 7 °C"}]
with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools, temperature=0) as stream:
    text = stream.get_final_completion().choices[0].message.content
called = [[call.function.name, dict(call.function.parsed_arguments)]]
print(json.dumps({"did": "streamed", "called": called, "text": text}))

prompt = [{"role": "user", "content": "Ada is 36 years old. As JSON."}]
json_client = openai.OpenAI(base_url=os.environ["JSON_BASE_URL"])
parsed = json_client.chat.completions.parse(
    model=MODEL, messages=prompt, response_format=Person, temperature=0
)
print(json.dumps({"did": "held", "is": parsed.choices[0].message.parsed.model_dump()}))
