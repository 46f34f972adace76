"""Access to Redis: clients, the servers behind them, and their setup."""
