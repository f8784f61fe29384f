"""An Iceberg table: the files are entered in a snapshot that names the number of our commit.

Spark writes the files and the package `pyiceberg` the metadata.  Without a catalog of the user's
own, one in a SQLite file beside the journal keeps the table.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from meshmsg import ConfigError, LogError
from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.journal import FOLDER, Commit
from meshmsg.spark_sink.sink.tables import Table

PROPERTY = "meshmsg.commit"


class IcebergTable(Table):
    """A table of parquet files with Iceberg metadata."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        try:
            import pyiceberg.catalog as catalogs
        except ImportError:
            problem = "iceberg needs the package pyiceberg: pip install 'meshmsg[iceberg]'"
            raise ConfigError("format", problem) from None
        if output.partition_by:
            problem = (
                "columns that become folders are not in the files, and Iceberg wants them there: "
                "leave it out, Iceberg prunes by the statistics of its files"
            )
            raise ConfigError("partition_by", problem)
        self._catalogs: Any = catalogs
        self._iceberg: Any = None

    def register(self, commit: Commit) -> None:
        """Enter the files, unless a snapshot has this commit; raises `LogError`."""
        files = [f"{self.output.out}/{f.path}" for f in commit.files if f.root == "out"]
        if not files:
            return
        try:
            table = self._open(files[0])
            app = f"{PROPERTY}.{self.journal.about['id']}"
            reached = self._reached(table, app)
            if reached is None:  # snapshots that told of it may have been expired by a user
                reached = self.journal.published
            if reached < commit.number:
                table.add_files(
                    files,
                    snapshot_properties={app: str(commit.number)},
                    check_duplicate_files=False,
                )
        except Exception as error:  # the library has errors of its own, without a common root
            if isinstance(error, ConfigError | LogError):
                raise
            problem = f"the Iceberg table {self.output.table} could not be written: {error}"
            raise LogError(self.output.out, problem) from error

    @staticmethod
    def _reached(table: Any, app: str) -> int | None:
        """The newest of our commits that a snapshot has: others may write the table as well."""
        for snapshot in reversed(table.metadata.snapshots):
            summary = snapshot.summary
            found = None if summary is None else summary.additional_properties.get(app)
            if found is not None:
                return int(found)
        return None

    def _open(self, sample: str) -> Any:
        if self._iceberg is not None:
            self._iceberg.refresh()
            return self._iceberg
        catalog = open_catalog(self.output)
        space = self.output.table.rpartition(".")[0] or "lake"
        if catalog.table_exists(self.output.table):
            self._iceberg = catalog.load_table(self.output.table)
            return self._iceberg
        catalog.create_namespace_if_not_exists(space)
        self._iceberg = catalog.create_table_if_not_exists(
            self.output.table, schema=plain_schema(pq.read_schema(sample)), location=self.output.out
        )
        return self._iceberg


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Without Spark's notes, and with every field allowed to be null."""
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])


def open_catalog(output: Output) -> Any:
    """The catalog that an output names, or the file beside its journal."""
    import pyiceberg.catalog as catalogs

    own = {
        "type": "sql",
        "uri": f"sqlite:///{output.out}/{FOLDER}/catalog.db",
        "warehouse": f"file://{output.out}",
    }
    return catalogs.load_catalog("meshmsg", **(output.catalog or own))
