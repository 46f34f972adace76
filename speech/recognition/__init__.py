"""From sound to words: a process that recognises, and the gateway's side of it."""
