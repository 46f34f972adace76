"""What filters do to messages and replies: words, patterns and hooks, one character at a time."""
