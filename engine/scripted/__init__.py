"""An engine whose replies are scripts, for tests of timing and benchmarks of the gateway."""
