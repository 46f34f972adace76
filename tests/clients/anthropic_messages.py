"""Anthropic's Python client: a whole reply, a stream, one that is left in the middle, a count, and a refusal."""

import json
import os

import anthropic

MODEL = "midstream-demo"
COUNT = [{"role": "user", "content": "Count from 1 to 500."}]
REQUEST = {"model": MODEL, "messages": COUNT, "max_tokens": 1000, "extra_body": {"temperature": 0}}

client = anthropic.Anthropic(base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), api_key="anything")

whole = client.messages.create(**REQUEST, stop_sequences=[" 12", "never"])
text = "".join(block.text for block in whole.content)
print(json.dumps({"did": "whole", "text": text, "tokens": whole.usage.output_tokens}))
print(json.dumps({"did": "stopped", "by": [whole.stop_reason, whole.stop_sequence]}))

with client.messages.stream(**REQUEST, stop_sequences=[" 12", "never"]) as stream:
    text = "".join(stream.text_stream)
    message = stream.get_final_message()
print(json.dumps({"did": "stream", "text": text, "tokens": message.usage.output_tokens}))

text = ""
with client.messages.stream(**REQUEST) as stream:
    for piece in stream.text_stream:
        text += piece
        if " 20," in text:
            break  # leaving the block closes the connection, and that stops the model
print(json.dumps({"did": "left", "text": text}))

counted = client.messages.count_tokens(model=MODEL, messages=COUNT, system="Be brief.")
begun = client.messages.create(**REQUEST | {"max_tokens": 1, "system": "Be brief."}).usage
prompt = begun.input_tokens + begun.cache_read_input_tokens
print(json.dumps({"did": "count", "tokens": [counted.input_tokens, prompt]}))

try:
    client.messages.create(**REQUEST | {"model": "another"})
except anthropic.NotFoundError as error:
    print(json.dumps({"did": "refused", "why": error.message, "type": error.type, "id": error.request_id}))

try:
    client.messages.batches.list()
except anthropic.NotFoundError as error:
    print(json.dumps({"did": "unserved", "why": error.message, "type": error.type, "id": error.request_id}))
