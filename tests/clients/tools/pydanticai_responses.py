"""Pydantic AI over Responses: an agent with a tool, run whole and streamed, turns that follow each other, output of a type."""

import asyncio
import json
import os

from person import Person
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "midstream-demo"
QUESTION = "What is the weather in Oslo?"
TURNS = 10


agent = Agent(OpenAIResponsesModel(MODEL))  # reads OPENAI_BASE_URL and OPENAI_API_KEY


@agent.tool_plain
def get_weather(city: str) -> str:
    """Say what the weather is."""
    return "rain, 7 °C"


def summary(ran):
    parts = [part for message in ran.all_messages() for part in message.parts]
    called = [[one.tool_name, one.args_as_dict()] for one in parts if isinstance(one, ToolCallPart)]
    return {"called": called, "text": ran.output}


async def read(_, events):
    """With a reader, replies are streamed."""
    async for _event in events:
        pass


async def turns():
    """A conversation that the client repeats, and one that it goes on with by the last response."""
    history, kept, texts = [], [], []
    for _ in range(TURNS):
        ran = await agent.run(QUESTION, message_history=history)
        history = ran.all_messages()
        texts.append(ran.output)
        settings = {"openai_previous_response_id": "auto"}
        ran = await agent.run(QUESTION, message_history=kept, model_settings=settings)
        kept = ran.all_messages()
        texts.append(ran.output)
    return {"texts": sorted(set(texts)), "count": len(texts)}


async def main():
    print(json.dumps({"did": "tool", **summary(await agent.run(QUESTION))}))
    print(json.dumps({"did": "streamed", **summary(await agent.run(QUESTION, event_stream_handler=read))}))
    print(json.dumps({"did": "turns", **await turns()}))
    demo = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=os.environ["JSON_BASE_URL"]))
    held = Agent(demo, output_type=NativeOutput(Person, strict=True), model_settings={"temperature": 0})
    ran = await held.run("Ada is 36 years old. As JSON.")
    print(json.dumps({"did": "held", "is": ran.output.model_dump()}))


asyncio.run(main())
