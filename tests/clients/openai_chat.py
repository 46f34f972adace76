"""OpenAI's Python client: the models, a whole reply, a stream, and one that is left in the middle."""

import json

import openai

MODEL = "midstream-demo"
COUNT = [{"role": "user", "content": "Count from 1 to 500."}]

client = openai.OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
print(json.dumps({"did": "models", "ids": [model.id for model in client.models.list()]}))

whole = client.chat.completions.create(model=MODEL, messages=COUNT, temperature=0, stop=" 12")
choice = whole.choices[0]
print(json.dumps({"did": "whole", "text": choice.message.content, "tokens": whole.usage.completion_tokens}))

text, tokens = "", None
for chunk in client.chat.completions.create(
    model=MODEL,
    messages=COUNT,
    temperature=0,
    stop=" 12",
    stream=True,
    stream_options={"include_usage": True},
):
    text += "".join(choice.delta.content or "" for choice in chunk.choices)
    tokens = chunk.usage and chunk.usage.completion_tokens
print(json.dumps({"did": "stream", "text": text, "tokens": tokens}))

text = ""
with client.chat.completions.create(model=MODEL, messages=COUNT, temperature=0, stream=True) as stream:
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if " 20," in text:
            break  # leaving the block closes the connection, and that stops the model
print(json.dumps({"did": "left", "text": text}))

try:
    client.chat.completions.create(model="another", messages=COUNT)
except openai.NotFoundError as error:
    print(json.dumps({"did": "refused", "why": str(error)}))
