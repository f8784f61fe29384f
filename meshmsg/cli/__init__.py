"""The command `meshmsg`."""
