"""From words to sound: the program that speaks."""
