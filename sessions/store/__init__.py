"""The store in Redis: keys, scripts, history, journal, and ownership of turns."""
