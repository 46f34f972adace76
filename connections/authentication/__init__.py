"""Who may come in: API keys, JSON Web Tokens, single-use tickets, and how long each of them entitles to stay."""
