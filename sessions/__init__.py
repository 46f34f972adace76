"""The sessions floor: conversations, turns, history and journal. It knows no socket and no torch."""
