"""LangChain over Responses: a tool, whole and streamed, turns that follow each other in two ways, output of a schema."""

import json
import os

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODEL = "midstream-demo"
QUESTION = "What is the weather in Oslo?"
TURNS = 10
PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@tool
def get_weather(city: str) -> str:
    """Say what the weather is."""
    return "rain, 7 °C"


def model(**more):
    return ChatOpenAI(model=MODEL, use_responses_api=True, **more)  # reads OPENAI_BASE_URL and OPENAI_API_KEY


def whole(caller, messages):
    return caller.invoke(messages)


def streamed(caller, messages):
    reply = None
    for chunk in caller.stream(messages):
        reply = chunk if reply is None else reply + chunk
    return reply


def run(caller, messages, ask=whole):
    """A turn: calls and their results, to the reply in words."""
    messages.append(HumanMessage(QUESTION))
    called = []
    while True:
        reply = ask(caller, messages)
        messages.append(reply)
        if not reply.tool_calls:
            return {"called": called, "text": reply.text}
        for call in reply.tool_calls:
            called.append([call["name"], call["args"]])
            messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))


def turns():
    repeats, follows = model(), model(use_previous_response_id=True)
    texts = []
    for one in (repeats, follows):
        messages, caller = [], one.bind_tools([get_weather])
        texts += [run(caller, messages)["text"] for _ in range(TURNS)]
    return {"texts": sorted(set(texts)), "count": len(texts)}


caller = model().bind_tools([get_weather])
print(json.dumps({"did": "tool", **run(caller, [])}))
print(json.dumps({"did": "streamed", **run(caller, [], streamed)}))
print(json.dumps({"did": "turns", **turns()}))
demo = model(base_url=os.environ["JSON_BASE_URL"], temperature=0)
held = demo.with_structured_output(PERSON, method="json_schema", strict=True)
print(json.dumps({"did": "held", "is": held.invoke("Ada is 36 years old. As JSON.")}))
