"""Pydantic AI: an agent with a tool, run whole and streamed, and output of a type in each of its modes."""

import asyncio
import json
import os

from person import Person
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "midstream-demo"
QUESTION = "What is the weather in Oslo?"


agent = Agent(
    OpenAIChatModel(MODEL), model_settings={"temperature": 0}
)  # reads OPENAI_BASE_URL and OPENAI_API_KEY


@agent.tool_plain
def get_weather(city: str) -> str:
    """Say what the weather is."""
    return "rain, 7 °C"


def called(messages):
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
    return [[part.tool_name, part.args_as_dict()] for part in parts]


async def read(_, events):
    """With a reader, replies are streamed."""
    async for _event in events:
        pass


async def main():
    ran = await agent.run(QUESTION)
    print(json.dumps({"did": "tool", "called": called(ran.all_messages()), "text": ran.output}))
    ran = await agent.run(QUESTION, event_stream_handler=read)  # `run_stream` ends with text before a call
    print(json.dumps({"did": "streamed", "called": called(ran.all_messages()), "text": ran.output}))
    requested = "Ada is 36 years old. As JSON."
    ran = await Agent(OpenAIChatModel(MODEL)).run(requested, output_type=ToolOutput(Person))
    print(json.dumps({"did": "person", "is": ran.output.model_dump()}))
    ran = await Agent(OpenAIChatModel(MODEL)).run(requested, output_type=PromptedOutput(Person))
    print(json.dumps({"did": "prompted", "is": ran.output.model_dump()}))
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=os.environ["JSON_BASE_URL"]))
    ran = await Agent(model, model_settings={"temperature": 0}).run(
        requested, output_type=NativeOutput(Person)
    )
    print(json.dumps({"did": "held", "is": ran.output.model_dump()}))


asyncio.run(main())
