"""The way to Redis: its clients, the servers behind them, and what is known of them."""
