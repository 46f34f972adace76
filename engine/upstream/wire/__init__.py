"""Requests to upstreams and their answers, in the shapes of OpenAI's API."""
