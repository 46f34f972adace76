"""The doors for OpenAI's clients: projections of turns into what their SDKs read and write."""
