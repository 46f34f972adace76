"""Images on their own: uploaded before a message shows them, and read later for the history."""
