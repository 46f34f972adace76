"""Anthropic's Python client: its tool runner, which runs the tool and sends the result, whole and streamed."""

import json
import os

import anthropic

client = anthropic.Anthropic(base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), api_key="anything")
called = []


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """Say what the weather is."""
    called.append(["get_weather", {"city": city}])
    return "rain, 7 °C"


for is_streamed in (False, True):
    called.clear()
    runner = client.beta.messages.tool_runner(
        model="midstream-demo",
        max_tokens=2000,
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[get_weather],
        stream=is_streamed,
    )
    text = runner.until_done().content[0].text
    print(json.dumps({"did": "streamed" if is_streamed else "tool", "called": called, "text": text}))
