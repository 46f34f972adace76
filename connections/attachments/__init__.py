"""Images by themselves: uploaded before a message shows them, and read again from the history."""
