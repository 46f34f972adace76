"""LangChain over Responses: a tool, whole and streamed, turns that follow each other in two ways, output of a schema."""

import asyncio
import os
from functools import partial

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from shared import AS_JSON, MODEL, QUESTION, WEATHER, say, ten_turns

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
    return WEATHER


def model(**more):
    return ChatOpenAI(model=MODEL, use_responses_api=True, **more)  # reads OPENAI_BASE_URL and OPENAI_API_KEY


def streamed(caller, messages):
    reply = None
    for chunk in caller.stream(messages):
        reply = chunk if reply is None else reply + chunk
    return reply


def run(caller, messages, ask=lambda caller, messages: caller.invoke(messages)):
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


async def turn(caller, messages):
    return run(caller, messages)["text"]


caller = model().bind_tools([get_weather])
say("tool", **run(caller, []))
say("streamed", **run(caller, [], streamed))
follows = model(use_previous_response_id=True).bind_tools([get_weather])
say("turns", **asyncio.run(ten_turns(partial(turn, caller, []), partial(turn, follows, []))))
demo = model(base_url=os.environ["JSON_BASE_URL"], temperature=0)
held = demo.with_structured_output(PERSON, method="json_schema", strict=True)
say("held", **{"is": held.invoke(AS_JSON)})
