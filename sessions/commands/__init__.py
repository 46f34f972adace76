"""What clients ask for: send, branch, remove, resume, and the queue."""
