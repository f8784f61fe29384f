"""A program that counts a log's events with a plain SparkSession, on the Java that is found.

    python tests/support/programs/spark_count.py DATA_DIR

Prints the count and the home of Java.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession

from meshmsg.spark_sink import ensure_java


def main() -> None:
    ensure_java()
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    count = spark.read.format("meshmsg").load(sys.argv[1]).count()
    jvm: Any = spark._jvm
    print(count, jvm.java.lang.System.getProperty("java.home"))


if __name__ == "__main__":
    main()
