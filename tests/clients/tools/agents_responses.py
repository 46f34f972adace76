"""OpenAI's agents SDK with its default, which is Responses: a tool, whole and streamed, ten turns in two ways, a handoff, output of a type."""

import asyncio
import json
import os

from agents import (
    Agent,
    HandoffCallItem,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    ToolCallItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from person import Person

MODEL = "midstream-demo"
QUESTION = "What is the weather in Oslo?"
TURNS = 10


@function_tool
def get_weather(city: str) -> str:
    """Say what the weather is."""
    return "rain, 7 °C"


def summary(result):
    kinds = ToolCallItem | HandoffCallItem
    calls = [item.raw_item for item in result.new_items if isinstance(item, kinds)]
    called = [[call.name, json.loads(call.arguments)] for call in calls]
    return {"called": called, "text": result.final_output}


async def turns(agent):
    """A conversation that the client repeats, and one that it goes on with by the last response."""
    history, last, texts = [], None, []
    for _ in range(TURNS):
        ran = await Runner.run(agent, [*history, {"role": "user", "content": QUESTION}])
        history = ran.to_input_list()
        texts.append(ran.final_output)
        ran = await Runner.run(agent, QUESTION, previous_response_id=last)
        last = ran.last_response_id
        texts.append(ran.final_output)
    return {"texts": sorted(set(texts)), "count": len(texts)}


async def main():
    set_tracing_disabled(True)  # traces go to OpenAI
    caller = Agent(name="Assistant", model=MODEL, instructions="Be kind.", tools=[get_weather])
    print(json.dumps({"did": "tool", **summary(await Runner.run(caller, QUESTION))}))
    streamed = Runner.run_streamed(caller, QUESTION)
    async for _ in streamed.stream_events():
        pass
    print(json.dumps({"did": "streamed", **summary(streamed)}))
    print(json.dumps({"did": "turns", **await turns(caller)}))
    forecaster = Agent(name="forecaster", model=MODEL, instructions="Know it.", tools=[get_weather])
    triage = Agent(name="Desk", model=MODEL, instructions="Hand over.", handoffs=[forecaster])
    ran = await Runner.run(triage, QUESTION)
    print(json.dumps({"did": "handoff", **summary(ran), "by": ran.last_agent.name}))
    demo = OpenAIResponsesModel(model=MODEL, openai_client=AsyncOpenAI(base_url=os.environ["JSON_BASE_URL"]))
    held = Agent(
        name="Assistant", model=demo, model_settings=ModelSettings(temperature=0), output_type=Person
    )
    ran = await Runner.run(held, "Ada is 36 years old. As JSON.")
    print(json.dumps({"did": "held", "is": ran.final_output.model_dump()}))


asyncio.run(main())
