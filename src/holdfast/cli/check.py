"""holdfast check"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.session import Json, Root, Session


def command(
    program: Annotated[str, typer.Argument(metavar="APP", help="The application, such as netmon.py or netmon.py:app.")],
    root: Root = None,
    json: Json = False,
) -> None:
    """Describe every node of an application to Spark and say what would be refused or warned of, and why.

    Nothing is started and no stream is touched. The streams that the application reads from outside must exist, so that
    their columns are known. Ends with 1 if a node is wrong.

    \b
    holdfast check netmon.py
    holdfast check netmon.py --root streams --json
    """
    from holdfast.host.app_file import load_app
    from holdfast.host.checking import check
    from holdfast.spark import session as spark_session
    from holdfast.spark.engine import SparkEngine

    session = Session(root, json)
    app = load_app(program, Path.cwd())
    spark = spark_session("holdfast-check")
    spark.sparkContext.setLogLevel("OFF")
    try:
        wrong = 0
        for found in check(app.diagram(), session.store, SparkEngine(lambda: spark)):
            wrong += found.wrong is not None
            query = found.query
            session.say(f"{'wrong' if found.wrong else 'ok   '}  {found.text}", node=found.node, stime=query.stime,
                        wrong=found.wrong, warnings=list(found.warnings), lag_us=query.lag_us,
                        bucket_by_bucket=query.bucket_by_bucket, operators=list(query.operators))  # fmt: skip
            for warning in () if json else found.warnings:
                print(f"note   {found.node}: {warning}", flush=True)
    finally:
        spark.stop()
    if wrong:
        raise typer.Exit(1)
