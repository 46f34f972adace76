"""Authentication: API keys, JSON Web Tokens, single-use tickets, and how long each of them is valid."""
