"""OpenAI's agents SDK over chat completions and over Responses, its default: a tool, whole and streamed, and output of a type.

Over Responses also ten turns in two ways, and a handoff.
"""

import asyncio
import json
import os

from agents import (
    Agent,
    HandoffCallItem,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    ToolCallItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from person import Person
from shared import AS_JSON, MODEL, QUESTION, WEATHER, say, ten_turns


@function_tool
def get_weather(city: str) -> str:
    """Say what the weather is."""
    return WEATHER


def summary(result):
    kinds = ToolCallItem | HandoffCallItem
    calls = [item.raw_item for item in result.new_items if isinstance(item, kinds)]
    called = [[call.name, json.loads(call.arguments)] for call in calls]
    return {"called": called, "text": result.final_output}


async def turns(agent):
    """A conversation that the client repeats, and one that it goes on with by the last response."""
    history, last = [], None

    async def repeating():
        nonlocal history
        ran = await Runner.run(agent, [*history, {"role": "user", "content": QUESTION}])
        history = ran.to_input_list()
        return ran.final_output

    async def following():
        nonlocal last
        ran = await Runner.run(agent, QUESTION, previous_response_id=last)
        last = ran.last_response_id
        return ran.final_output

    return await ten_turns(repeating, following)


async def run(kind, api=""):
    """Call, stream, and keep to a type."""
    model = kind(model=MODEL, openai_client=AsyncOpenAI())  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    caller = Agent(name="Assistant", model=model, instructions="Be kind.", tools=[get_weather])
    say(f"tool{api}", **summary(await Runner.run(caller, QUESTION)))
    streamed = Runner.run_streamed(caller, QUESTION)
    async for _ in streamed.stream_events():
        pass
    say(f"streamed{api}", **summary(streamed))
    demo = kind(model=MODEL, openai_client=AsyncOpenAI(base_url=os.environ["JSON_BASE_URL"]))
    greedy = ModelSettings(temperature=0)
    held = Agent(name="Assistant", model=demo, model_settings=greedy, output_type=Person)
    say(f"held{api}", **{"is": (await Runner.run(held, AS_JSON)).final_output.model_dump()})
    return caller


async def main():
    set_tracing_disabled(True)  # traces go to OpenAI
    await run(OpenAIChatCompletionsModel, " by chat")
    caller = await run(OpenAIResponsesModel)
    say("turns", **await turns(caller))
    forecaster = Agent(name="forecaster", model=MODEL, instructions="Know it.", tools=[get_weather])
    triage = Agent(name="Desk", model=MODEL, instructions="Hand over.", handoffs=[forecaster])
    ran = await Runner.run(triage, QUESTION)
    say("handoff", **summary(ran), by=ran.last_agent.name)


asyncio.run(main())
