"""Speech synthesis: espeak-ng, and models."""
