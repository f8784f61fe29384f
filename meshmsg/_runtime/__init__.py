"""What the threads of a peer share: guards, turns, limits of log lines, private folders.

Belongs here: helpers of several role rooms that know none of them.
"""
