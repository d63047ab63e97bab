"""`pinlater run`: the supervisor, its worker processes, and what they report."""
