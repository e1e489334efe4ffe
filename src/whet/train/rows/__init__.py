"""Learning from rows that exist (SFT, preferences, reward models), and making such rows from samples."""
