"""Shared parts of the HTTP doors: requests, answers, refusals."""
