"""Text and tokens: spelling of prompts, decoding of replies, stop strings, log-probabilities."""
