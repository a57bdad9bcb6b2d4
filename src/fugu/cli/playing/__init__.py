"""Playing by hand: the game, and where it is shown."""
