"""The nouns: events, batches, topics, configuration, errors, codecs, units.

Belongs here: types and checks that every other room uses.  Does not belong here: how a noun lies in
bytes (`_wire`), and whatever waits, looks at the clock or reaches out of the process.
"""
