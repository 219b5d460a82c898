"""Iceberg's own Spark runtime on a catalog in PostgreSQL. tests/peers starts it and asks it.

    python iceberg_worker.py JARS JDBC_URI WAREHOUSE FOLDER

Runs in a venv of its own, so it imports nothing but pyspark. It reads SQL from standard input, a JSON string a line, with the
catalog as `lastword`, and prints a JSON object a line: `rows`, or `error`.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    jars, uri, warehouse, folder = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # What is printed is the answer; what Java prints on standard output is none.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lastword": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lastword.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.lastword.uri": uri,
        "spark.sql.catalog.lastword.warehouse": warehouse,
        "spark.sql.catalog.lastword.cache-enabled": "false",
        "spark.jars": ",".join(str(jar) for jar in sorted(Path(jars).glob("*.jar"))),
        "spark.sql.warehouse.dir": f"{folder}/spark-warehouse",
    }
    builder = SparkSession.builder.master("local[1]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"rows": [[spark.version]]}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = {"rows": [list(row) for row in spark.sql(json.loads(line)).collect()]}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            answer = {"error": str(error)[:2000]}
        print(json.dumps(answer, default=str), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
