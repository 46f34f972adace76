"""What the settings ask for, put together: who may come in, limits, the store, engines elsewhere."""
