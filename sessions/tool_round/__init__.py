"""The time between a reply's calls and the turn that follows them."""
