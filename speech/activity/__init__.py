"""When somebody speaks, pauses, goes on and has ended. Knows frames and their verdicts, no library."""
