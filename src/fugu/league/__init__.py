"""The league: several policies in one vector, whom to play next, and who is how good."""
