"""Limits on clients and the server (bounds, rates, shares, quotas), and fair queueing of callers that wait."""
