"""A Delta Lake table: the files are entered in its log, under the number of our commit.

`delta-spark` has no jars for this Spark, so Spark writes the files and the package `deltalake` the
log.  A transaction's version is stored in it and not enforced: it is looked at first.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from typing import Any

from meshmsg import ConfigError, LogError
from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.journal import Commit, Staged
from meshmsg.spark_sink.sink.tables import Table

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


class DeltaTable(Table):
    """A table of parquet files with a `_delta_log`."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        try:
            import deltalake
        except ImportError:
            problem = "delta needs the package deltalake: pip install 'meshmsg[delta]'"
            raise ConfigError("format", problem) from None
        self._lib: Any = deltalake
        self._delta: Any = None

    def register(self, commit: Commit) -> None:
        """Enter the files, unless the log has this commit; raises `LogError`."""
        files = [file for file in commit.files if file.root == "out"]
        if not files:
            return
        app = f"meshmsg-{self.journal.about['id']}"
        try:
            if self._table() is not None:
                version = self._delta.transaction_version(app)
                if version is not None and version >= commit.number:
                    return
            self._enter(app, commit, files)
        except Exception as error:  # the library has errors of its own, without a common root
            if isinstance(error, ConfigError | LogError):
                raise
            raise LogError(
                self.output.out, f"the Delta log could not be written: {error}"
            ) from error

    def _table(self) -> Any:
        if self._delta is None:
            if not self._lib.DeltaTable.is_deltatable(self.output.out):
                return None
            self._delta = self._lib.DeltaTable(self.output.out)
        else:
            self._delta.update_incremental()
        return self._delta

    def _enter(self, app: str, commit: Commit, files: list[Staged]) -> None:
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        actions = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=partition_values(file.path),
                modification_time=commit.time_ns // 1_000_000,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        properties = CommitProperties(
            custom_metadata={"meshmsg.commit": str(commit.number)},
            app_transactions=[Transaction(app, commit.number)],
        )
        if self._delta is None:
            self._create()
        self._delta.create_write_transaction(
            actions,
            "append",
            self._delta.schema(),
            partition_by=list(self.output.partition_by) or None,
            commit_properties=properties,
        )

    def _create(self) -> None:
        """A table of the columns that Spark writes, and of those that become folders."""
        schema = delta_schema(self.journal.about["schema"])
        self._delta = self._lib.DeltaTable.create(
            self.output.out,
            schema=self._lib.Schema.from_json(schema),
            mode="ignore",
            partition_by=list(self.output.partition_by) or None,
        )


def delta_schema(spark_schema: str) -> str:
    """A Delta schema as JSON; it is Spark's own, where every field may be null."""
    fields = json.loads(spark_schema)
    for field in fields["fields"]:
        field["metadata"] = {}
        field["nullable"] = True
    return json.dumps(fields)


def partition_values(path: str) -> dict[str, str | None]:
    """The values that are in a file's folders: `topic=a/date=2026-11-16/part-1.parquet`."""
    found: dict[str, str | None] = {}
    for part in os.path.dirname(path).split("/"):
        name, mark, value = part.partition("=")
        if mark:
            value = urllib.parse.unquote(value)
            found[urllib.parse.unquote(name)] = None if value == NULL_FOLDER else value
    return found
