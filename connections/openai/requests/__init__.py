"""The requests of OpenAI's clients: the supported fields, and their meaning for the layers below."""
