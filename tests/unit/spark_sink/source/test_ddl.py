"""Columns as DDL: what is taken, and what is said of what is not."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from meshmsg import ConfigError
from meshmsg.spark_sink.source.ddl import DEPTH_MAX, is_nested, parse_columns

#: What Spark takes; `tests/spark/session/test_sink_spark.py` asks it.
GOOD = (
    "a INT",
    "a  bigint  ,b Double",
    "s STRUCT<a: INT, b STRING>",
    "s STRUCT<a INT NOT NULL COMMENT 'x'>",
    "s STRUCT<>",
    "s struct < a : int >",
    "a ARRAY<ARRAY<MAP<STRING,INT>>>",
    "a DECIMAL, b DECIMAL(10), c DEC( 10 , 2 ), d NUMERIC(38,38)",
    "a CHAR(3), b CHARACTER(3), c VARCHAR(3)",
    "a BYTE, b SHORT, c LONG, d REAL, e TINYINT, f SMALLINT, g INTEGER, h FLOAT, i BOOLEAN",
    "a TIMESTAMP, b TIMESTAMP_LTZ, c TIMESTAMP_NTZ, d DATE, e BINARY, f VARIANT",
    "a TIMESTAMP WITHOUT TIME ZONE, b TIMESTAMP WITH LOCAL TIME ZONE",
    "a STRING COLLATE UTF8_LCASE",
    "a STRING COMMENT 'x, y', b STRING COMMENT \"x\" 'y', c STRING COMMENT 'it\\'s'",
    "a STRING NOT  NULL COMMENT 'x'",
    "`a b` INT, `a``b` INT, `` INT, 1a INT, _a INT, select INT, not INT, null INT",
    "a INT -- c\n, b /* x, */ INT\n",
    "timestamp TIMESTAMP, array INT, struct STRUCT<struct: INT>, map MAP<INT,INT>",
    "a MAP<STRUCT<x: INT>, INT>",
    "a STRUCT<x INT, y: ARRAY<STRUCT<z: DECIMAL(3,1)>>>",
)
#: What Spark does not take either, and what is said of it here.
BAD = {
    "": "there is its end, and the name of a column is wanted",
    "a: INT": "there is ':' behind 'a', and the type of 'a' is wanted",
    "a INT, b: STRING": "':' behind 'a INT, b'",
    "a": "there is its end behind 'a', and the type of 'a' is wanted",
    "a INT,": "the name of a column is wanted",
    "a INT,,b INT": "there is ',' behind 'a INT,', and the name of a column",
    "a INT b INT": "there is 'b' behind 'a INT', and a comma or the end is wanted",
    "a INT;": "';' behind 'a INT'",
    "a FOO": "'a FOO': FOO is not a type; there are array, bigint",
    "a BOOL": "BOOL is not a type; did you mean BOOLEAN?",
    "a STRUCT<x: FOO>": "'x FOO': FOO is not a type",
    "a ARRAY<STRUCT<x: MAP<STRING, BIGNT>>>": "'x.value BIGNT': BIGNT is not a type; .* BIGINT",
    "m MAP<STRING>": "',' is wanted",
    "m MAP<STRING INT>": "there is 'INT' behind 'm MAP<STRING', and ',' is wanted",
    "a ARRAY": "there is its end behind 'a ARRAY', and '<' is wanted",
    "a ARRAY<INT": "'>' is wanted",
    "a ARRAY<>": r"the type of 'a\[\]' is wanted",
    "a ARRAY<INT NOT NULL>": "'NOT' behind 'a ARRAY<INT', and '>'",
    "a STRUCT<x: INT,>": "the name of a column is wanted",
    "a STRUCT(x INT)": "'<' is wanted",
    "a INT(3)": "a comma or the end is wanted",
    "a CHAR": r"'a CHAR': write CHAR\(10\)",
    "a DECIMAL(10,2,3)": r"write DECIMAL\(10,2\)",
    "a DECIMAL(39,2)": "at most 38 digits",
    "a DECIMAL(5,7)": "as many of them behind the point",
    "a DECIMAL()": "a whole number is wanted",
    "a DECIMAL(-1)": "a whole number is wanted",
    "a DECIMAL(1.5)": "is wanted",
    "a STRING NULL": "a comma or the end is wanted",
    "a STRING NOT COMMENT 'x'": "NULL is wanted",
    "a STRING COMMENT x": "a text between quotation marks is wanted",
    "a STRING COMMENT 'x' NOT NULL": "a comma or the end is wanted",
    "a STRING COMMENT 'x": "a text between quotation marks is wanted",
    "`a INT": "the name of a column is wanted",
    "a.b INT": "the type of 'a' is wanted",
    "1 INT": "numbers between backticks",
    "ä INT": "the name of a column is wanted",
    "'a' INT": "the name of a column is wanted",
    "a TIMESTAMP WITH TIME ZONE": "a comma or the end is wanted",
}


@pytest.mark.parametrize(("text", "said"), BAD.items())
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"payload: .*{said}"):
        parse_columns("payload", text)


@pytest.mark.parametrize("text", ["a TIME", "a VOID", "a INTERVAL DAY", "a GEOMETRY(4326)"])
def test_types_that_no_payload_has_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a type"):
        parse_columns("payload", text)


def test_columns_are_what_they_are_called() -> None:
    found = parse_columns("payload", "`a b` DECIMAL(7,2) NOT NULL, c ARRAY<STRUCT<x: LONG>>")
    inner = t.StructType([t.StructField("x", t.LongType())])
    assert found == t.StructType(
        [
            t.StructField("a b", t.DecimalType(7, 2), nullable=False),
            t.StructField("c", t.ArrayType(inner)),
        ]
    )


def test_types_within_each_other_have_a_bound() -> None:
    good = "ARRAY<" * (DEPTH_MAX - 1) + "INT" + ">" * (DEPTH_MAX - 1)
    parse_columns("payload", f"a {good}")
    for depth in (DEPTH_MAX, 100_000):
        with pytest.raises(ConfigError, match=f"at most {DEPTH_MAX} types within each other"):
            parse_columns("payload", "a " + "ARRAY<" * depth + "INT")


def test_one_struct_is_not_columns() -> None:
    assert is_nested(" STRUCT<a: INT>")
    assert is_nested("struct /* x */ < a: INT >")
    assert not is_nested("struct STRUCT<a: INT>")
