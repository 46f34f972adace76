"""The Messages API, for clients of Anthropic: replies without a conversation, and counts of tokens."""
