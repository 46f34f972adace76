"""Text and tokens: prompts spelled, replies decoded, stop strings, log-probabilities."""
