"""The HTTP and WebSocket APIs beside the native protocol: other vendors' dialects, accounts, shares, administration."""
