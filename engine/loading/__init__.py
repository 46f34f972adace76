"""A checkpoint read, tried and made ready, or refused with the reason."""
