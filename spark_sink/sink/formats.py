"""Which class writes a table of which format: each is imported only where it is used."""

from __future__ import annotations

from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.tables import Table


def open_table(output: Output) -> Table:
    """The table that an output asks for, not yet open; raises `ConfigError`."""
    if output.format == "delta":
        from meshmsg.spark_sink.sink.delta import DeltaTable

        return DeltaTable(output)
    if output.format == "iceberg":
        from meshmsg.spark_sink.sink.iceberg import IcebergTable

        return IcebergTable(output)
    return Table(output)
