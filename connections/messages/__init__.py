"""Anthropic's Messages API: `/v1/messages`, and the tokens that a request has."""
