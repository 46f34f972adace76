"""What doors share whose requests have one reply each: who asks, the turn, its pieces as they come."""
