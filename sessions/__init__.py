"""The sessions layer: conversations, turns, history and journal. Knows neither sockets nor torch."""
