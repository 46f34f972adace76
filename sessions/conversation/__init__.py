"""Conversations that are live on this replica, who is attached, and how they are read."""
