"""OpenAI-compatible servers as engines."""
