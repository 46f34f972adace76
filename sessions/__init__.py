"""The sessions floor: conversations, turns, history and journal. Knows neither sockets nor torch."""
