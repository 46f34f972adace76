"""What is kept of conversations: messages, turns, the journal, and the list of them."""
