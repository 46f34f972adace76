"""The endpoints for OpenAI's clients: they convert turns to what its SDKs read and write."""
