"""OpenAI's doors for sound: transcriptions and speech."""
