"""Sound in a Realtime session: what it is asked to be, what is heard, and how much of a reply was played."""
