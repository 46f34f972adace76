"""What is kept in Redis: keys, scripts, history, journal, and which replica owns what."""
