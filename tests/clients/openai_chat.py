"""OpenAI's Python client: the models, a whole reply, a stream, and one that is left in the middle."""

import openai
from shared import COUNT, MODEL, say

REQUEST = {"model": MODEL, "messages": COUNT, "temperature": 0}


def chat(client):
    """Chat, as through a proxy, too."""
    whole = client.chat.completions.create(**REQUEST, stop=" 12")
    say("whole", text=whole.choices[0].message.content, tokens=whole.usage.completion_tokens)

    text, tokens = "", None
    usage = {"include_usage": True}
    for chunk in client.chat.completions.create(**REQUEST, stop=" 12", stream=True, stream_options=usage):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    say("stream", text=text, tokens=tokens)

    text = ""
    with client.chat.completions.create(**REQUEST, stream=True) as stream:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if " 20," in text:
                break  # leaving the block closes the connection, and that stops the model
    say("left", text=text)

    try:
        client.chat.completions.create(**REQUEST | {"model": "another"})
    except openai.NotFoundError as error:
        say("refused", why=str(error))


if __name__ == "__main__":
    openai_client = openai.OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    say("models", ids=[model.id for model in openai_client.models.list()])
    chat(openai_client)
