"""Several engines behind one door."""
