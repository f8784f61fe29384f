"""The mesh as one peer sees it: what all peers say of themselves, put together and with rates.

`figures` reads what a peer answered, `mesh` puts the answers of all together, `look` asks for them.
For those who show it to people: a page, a terminal.
"""
