"""Who may connect, and what each peer may do: keys, the allow list, known streams."""
