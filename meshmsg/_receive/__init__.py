"""From a socket to `for event in events`: subscriptions and their incoming streams."""
