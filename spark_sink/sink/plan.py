"""What is wrong with a sink's settings, found before Spark starts, as far as no Java is needed.

A wrong word costs a second then, not the half minute until Spark stands.  What only Spark can tell
(columns that SQL names, what a function returns) the driver finds before its first batch, and ends.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys

from meshmsg import ConfigError
from meshmsg.spark_sink.sink.config import Output, SinkConfig
from meshmsg.spark_sink.sink.daemon import end_session
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.shape import SIDE_COLUMNS, VIEW, check_folders, check_partitions
from meshmsg.spark_sink.source.ddl import parse_columns
from meshmsg.spark_sink.source.options import Options
from meshmsg.spark_sink.source.table import payloads_for, schema_ddl

#: A module that takes longer to import is left to the driver.
IMPORT_S = 60.0
_BEGINNINGS = ("select", "with", "from", "table", "values", "map", "reduce", "(")
_HINT = f"write SELECT ... FROM {VIEW}"
_SQL = re.compile(
    r"""(?P<left_out>\s+|--[^\n]*|/\*.*?\*/)
       |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
       |(?P<name>`(?:[^`]|``)*`|\w+)
       |(?P<mark>\$\{|.)""",
    re.VERBOSE | re.DOTALL,
)


def check_plan(config: SinkConfig) -> None:
    """Raise `ConfigError` for an output that no Spark could write, or `LogError`."""
    for output in config.outputs:
        check_columns(output)
        if output.sql is not None:
            check_sql(output.sql)
        if output.transform is not None:
            check_transform(output.transform)
        open_table(output).check()


def check_columns(output: Output) -> None:
    """See that payloads can have the columns, and folders their names."""
    options = Options(payload=output.payload, rows="all")
    schema = parse_columns("payload", schema_ddl(options))
    try:
        payloads_for(options, schema)
    except ConfigError as error:
        raise ConfigError("payload", error.problem) from None
    if not output.shaped:  # else only Spark knows what columns there are
        check_partitions(output, [name for name in schema.names if name not in SIDE_COLUMNS])
        check_folders(output, schema)


def check_sql(text: str) -> None:
    """See that this is one query, of the events; Spark finds the rest."""
    found = [token for token in _SQL.finditer(text) if token.lastgroup != "left_out"]
    words = [token[0].strip("`").lower() for token in found if token.lastgroup != "text"]
    if not words:
        raise ConfigError("sql", f"is empty: {_HINT}")
    if words[0] not in _BEGINNINGS:
        near = difflib.get_close_matches(words[0], _BEGINNINGS, 1)
        hint = f"did you mean {near[0].upper()}?" if near else _HINT
        raise ConfigError("sql", f"begins with {found[0][0]!r}, which begins no query; {hint}")
    while words[-1] == ";":
        words.pop()
    if ";" in words:
        raise ConfigError("sql", f"has several statements, and one is wanted: {_HINT}")
    if VIEW not in words:
        near = difflib.get_close_matches(VIEW, words, 1)
        hint = f"did you mean {VIEW} by {near[0]}?" if near else _HINT
        raise ConfigError("sql", f"does not read the table {VIEW}: {hint}")
    for first, second in ("()", "[]"):
        if words.count(first) != words.count(second):
            raise ConfigError("sql", f"has {first!r} and {second!r}, and not as many of each")
    for mark in ("'", '"', "`"):
        if mark in words:
            raise ConfigError("sql", f"has a {mark} that is not closed")
    for mark in ("{", "?"):
        if mark in words:
            raise ConfigError("sql", f"has a placeholder ({mark}), which nobody fills in")


def check_transform(name: str) -> None:
    """See that there is such a function, where the driver will look for it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "meshmsg.spark_sink.sink.shape", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with child:
        try:
            _, said = child.communicate(timeout=IMPORT_S)
        except subprocess.TimeoutExpired:
            return
        finally:
            end_session(child.pid)  # a module may start anything
    if child.returncode:
        problem = (said.strip().splitlines() or [f"its import ended with {child.returncode}"])[-1]
        raise ConfigError("transform", problem)
