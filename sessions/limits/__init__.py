"""Limits on clients and the server (bounds, rates, shares, quotas, leases), and fair queueing of callers that wait."""
