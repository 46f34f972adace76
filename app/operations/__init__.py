"""What operators use: keys, logs, metrics, readiness, the terminal."""
