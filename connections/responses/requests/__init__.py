"""Requests of the Responses API, read and checked."""
