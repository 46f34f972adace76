"""Several engines behind one interface."""
