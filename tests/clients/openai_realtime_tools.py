"""A tool over the Realtime protocol with OpenAI's Python client, whose types check every event."""

import asyncio
import json

import openai
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from shared import MODEL, say

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
EVENTS = TypeAdapter(RealtimeServerEvent)


async def receive_until(connection, last):
    """All events up to one of a type, each of which is what OpenAI's types say."""
    events = []
    while not events or events[-1].type != last:
        events.append(EVENTS.validate_json(await connection.recv_bytes()))
        if events[-1].type == "error":
            raise RuntimeError(events[-1].error.message)
    return events


async def main():
    """Reads OPENAI_BASE_URL and OPENAI_API_KEY."""
    async with openai.AsyncOpenAI() as client, client.realtime.connect(model=MODEL) as connection:
        await connection.session.update(session={"type": "realtime", "tools": [TOOL]})
        content = [{"type": "input_text", "text": "What is the weather in Bern?"}]
        message = {"type": "message", "role": "user", "content": content}
        await connection.conversation.item.create(item=message)
        await connection.response.create(response={"tool_choice": "required"})
        events = await receive_until(connection, "response.done")
        call = next(item for item in events[-1].response.output if item.type == "function_call")
        parts = [one.delta for one in events if one.type == "response.function_call_arguments.delta"]
        streamed = "".join(parts) == call.arguments
        say("called", name=call.name, arguments=json.loads(call.arguments), streamed=streamed)
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain, 7 degrees."}
        await connection.conversation.item.create(item=output)
        await connection.response.create()
        done = (await receive_until(connection, "response.done"))[-1].response
        say("answered", status=done.status, kinds=[one.type for one in done.output])


asyncio.run(main())
