"""What replicas tell and ask each other."""
