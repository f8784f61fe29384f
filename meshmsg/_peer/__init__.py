"""The peer that users hold, and the node that joins the role rooms below it."""
