"""Logs that others read: the recorder, what it serves, and the client that reads a log."""
