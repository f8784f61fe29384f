"""How Spark reads the mesh: the only room that imports pyspark.

Belongs here: the Spark data source, which plans by position and reads the durable logs in parallel,
and the sink daemon that runs such a query.

Does not belong here: anything a peer without Spark needs. No other part of `meshmsg` imports this
package, so that a plain install works without the `spark` extra.
"""
