"""Search over an owner's conversations: their titles, and the texts of their messages."""
