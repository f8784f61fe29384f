"""One stream, both ends: numbers, gaps, repair, flow control, the ledger."""
