"""The sound of a Realtime session: its settings, what is heard, and how much of a reply was played."""
