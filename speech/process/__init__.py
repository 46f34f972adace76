"""Processes for sound: how they are kept alive, spoken to, and shared by owners. Knows neither what hears nor what speaks."""
