"""One module for each way to send and receive: its functions are the roles of `task`."""
