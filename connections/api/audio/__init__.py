"""OpenAI's endpoints for sound: transcriptions and speech."""
