"""Pydantic AI over chat completions and over Responses: an agent with a tool, run whole and streamed, and output of a type.

Over chat also output in each mode, over Responses turns that follow each other.
"""

import asyncio
import os

from person import Person
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from shared import AS_JSON, MODEL, QUESTION, WEATHER, say, ten_turns


def get_weather(city: str) -> str:
    """Say what the weather is."""
    return WEATHER


def summary(ran):
    parts = [part for message in ran.all_messages() for part in message.parts]
    called = [[one.tool_name, one.args_as_dict()] for one in parts if isinstance(one, ToolCallPart)]
    return {"called": called, "text": ran.output}


async def read(_, events):
    """With a reader, replies are streamed; `run_stream` ends with text before a call."""
    async for _event in events:
        pass


async def turns(agent):
    """A conversation that the client repeats, and one that it goes on with by the last response."""

    def talking(**settings):
        history = []

        async def ask():
            ran = await agent.run(QUESTION, message_history=[*history], model_settings=settings)
            history[:] = ran.all_messages()
            return ran.output

        return ask

    return await ten_turns(talking(), talking(openai_previous_response_id="auto"))


async def run(kind, api=""):
    """Call, stream, and keep to a type."""
    agent = Agent(kind(MODEL), tools=[get_weather])  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    say(f"tool{api}", **summary(await agent.run(QUESTION)))
    say(f"streamed{api}", **summary(await agent.run(QUESTION, event_stream_handler=read)))
    demo = kind(MODEL, provider=OpenAIProvider(base_url=os.environ["JSON_BASE_URL"]))
    held = Agent(demo, output_type=NativeOutput(Person, strict=True), model_settings={"temperature": 0})
    say(f"held{api}", **{"is": (await held.run(AS_JSON)).output.model_dump()})
    return agent


async def main():
    await run(OpenAIChatModel, " by chat")
    say("turns", **await turns(await run(OpenAIResponsesModel)))
    for did, mode in (("person", ToolOutput), ("prompted", PromptedOutput)):
        ran = await Agent(OpenAIChatModel(MODEL)).run(AS_JSON, output_type=mode(Person))
        say(did, **{"is": ran.output.model_dump()})


asyncio.run(main())
