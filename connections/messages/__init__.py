"""Anthropic's Messages API: `/v1/messages`, and the token count of a request."""
