"""What is done to rows before they are written: SQL, a function, columns that become folders.

`python -m meshmsg.spark_sink.sink.shape MODULE:FUNCTION` says whether there is such a function.  It
is asked in a process of its own: what a user's module does when it is imported is not the daemon's.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshmsg import ConfigError
from meshmsg.spark_sink.sink.config import DERIVED, Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("meshmsg.spark_sink")

Shape = Callable[["DataFrame"], "DataFrame"]

VIEW = "events"
#: What rows have beside the columns of the table.
SIDE_COLUMNS = ("loss", "_error", "_raw")


def make_shape(output: Output) -> Shape:
    """What is done to the rows before they are written; raises `ConfigError`."""
    if output.transform is not None:
        return find_function(output.transform)
    if output.sql is not None:
        return functools.partial(_by_sql, output.sql)
    return lambda rows: rows


def _by_sql(text: str, rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView(VIEW)
    return rows.sparkSession.sql(text)


def find_function(name: str) -> Shape:
    """Import `module:function`; raises `ConfigError`."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever a user's module may do when it is imported
        problem = f"{name!r}: {error}. It is looked for as Python does: set PYTHONPATH, or install"
        raise ConfigError("transform", f"{problem} the package") from None
    if not callable(found):
        raise ConfigError("transform", f"{name!r} is not a function")
    made: Shape = found
    return made


def check_partitions(output: Output, columns: Sequence[str]) -> list[str]:
    """Return the columns of `partition_by` that are to be derived; raises `ConfigError`."""
    derived = [column for column in output.partition_by if column not in columns]
    there = [*columns, *(DERIVED if "time" in columns else ())]
    for column in derived:
        if column not in there:
            problem = f"there is no column {column!r}, but {', '.join(there)}"
            raise ConfigError("partition_by", problem)
    if not set(columns) - set(output.partition_by):
        raise ConfigError("partition_by", "names all columns: one has to be in the files")
    return derived


def check_folders(output: Output, schema: Any) -> None:
    """Raise `ConfigError` if a column cannot name a folder."""
    from pyspark.sql import types as t

    made_of_others = (t.ArrayType, t.MapType, t.StructType, t.VariantType)
    for field in schema.fields:
        if field.name in output.partition_by and isinstance(field.dataType, made_of_others):
            kind = field.dataType.simpleString()
            raise ConfigError("partition_by", f"{field.name!r} is {kind}, and cannot name a folder")


def partitioned(rows: DataFrame, output: Output) -> DataFrame:
    """With the columns that `partition_by` may derive; raises `ConfigError`."""
    from pyspark.sql import functions as f

    for column in check_partitions(output, rows.columns):
        rows = rows.withColumn(column, f.expr(DERIVED[column]))
    return rows


def plan_shape(spark: SparkSession, output: Output, schema: Any) -> Any:
    """The schema of the table, found without a row; raises `ConfigError` for what cannot work."""
    from pyspark.errors import PySparkException

    kept = [field.name for field in schema.fields if field.name not in SIDE_COLUMNS]
    empty = spark.createDataFrame([], schema).select(*kept)
    what = "sql" if output.sql is not None else "transform"
    try:
        shaped = make_shape(output)(empty)
        if not hasattr(shaped, "sparkSession"):
            raise ConfigError(what, f"gave {type(shaped).__name__}, not a DataFrame")
        planned = partitioned(shaped, output).schema
        names = [name.lower() for name in planned.names]
        twice = [name for name in planned.names if names.count(name.lower()) > 1]
        if twice:
            raise ConfigError(what, f"gives column {twice[0]!r} twice: name one of them otherwise")
        check_folders(output, planned)
        return planned
    except PySparkException as error:
        raise ConfigError(what, " ".join(str(error).split())[:500]) from None
    except ConfigError:
        raise
    except Exception as error:  # a user's function, tried without a row
        log.exception("%s", output.transform)
        raise ConfigError(what, f"{output.transform or output.sql}: {error!r}") from None


def main(name: str) -> int:
    """Say on the last line of standard error what is wrong with a function; 0 if nothing is."""
    try:
        find_function(name)
    except ConfigError as error:
        sys.stderr.write(f"\n{' '.join(error.problem.split())}\n")
        return 2
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(status)  # whatever the module has begun
