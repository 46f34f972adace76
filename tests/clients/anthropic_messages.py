"""Anthropic's Python client: a whole reply, a stream, one that is left in the middle, a count, and a refusal."""

import os

import anthropic
from shared import COUNT, MODEL, say

REQUEST = {"model": MODEL, "messages": COUNT, "max_tokens": 1000, "extra_body": {"temperature": 0}}

client = anthropic.Anthropic(base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), api_key="anything")

whole = client.messages.create(**REQUEST, stop_sequences=[" 12", "never"])
text = "".join(block.text for block in whole.content)
say("whole", text=text, tokens=whole.usage.output_tokens)
say("stopped", by=[whole.stop_reason, whole.stop_sequence])

with client.messages.stream(**REQUEST, stop_sequences=[" 12", "never"]) as stream:
    text = "".join(stream.text_stream)
    say("stream", text=text, tokens=stream.get_final_message().usage.output_tokens)

text = ""
with client.messages.stream(**REQUEST) as stream:
    for piece in stream.text_stream:
        text += piece
        if " 20," in text:
            break  # leaving the block closes the connection, and that stops the model
say("left", text=text)

counted = client.messages.count_tokens(model=MODEL, messages=COUNT, system="Be brief.")
begun = client.messages.create(**REQUEST | {"max_tokens": 1, "system": "Be brief."}).usage
say("count", tokens=[counted.input_tokens, begun.input_tokens + begun.cache_read_input_tokens])

for did, ask in (
    ("refused", lambda: client.messages.create(**REQUEST | {"model": "another"})),
    ("unserved", client.messages.batches.list),
):
    try:
        ask()
    except anthropic.NotFoundError as error:
        say(did, why=error.message, type=error.type, id=error.request_id)
