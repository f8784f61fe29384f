"""The demo: a day of the market, what happens to its parts, and the reconciliation.

`run` is the day, `parts` the processes that take part in it, `spark` what Spark makes of it, `view`
shows it while it runs, `story` says what came of it, and `report` prints that.
"""
