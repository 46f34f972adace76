"""A chat that is spoken: the microphone and the loudspeaker of this machine instead of the keyboard and the screen alone."""
