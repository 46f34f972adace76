"""Shared parts of the HTTP endpoints: requests, answers, refusals."""
