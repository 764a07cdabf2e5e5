"""What of Spark's functions is refused or warned of before it runs, by the plan alone."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.model.errors import UsageError
from holdfast.spark.plan_check import check_plan

CLOCK = "must not look at the clock"
CHANCE = "must give the same results for the same rows; got"


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Of no stream of ours: only expressions are looked at."""
    marked = spark.readStream.format("rate").load().withWatermark("timestamp", "0 seconds")
    return marked.selectExpr(
        "timestamp AS stime", "value", "cast(value AS int) AS i", "cast(value AS double) AS x",
        "cast(value AS float) AS f", "cast(value AS string) AS key", "cast(cast(value AS string) AS binary) AS bytes"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("current_timestamp()", CLOCK),
        ("now()", CLOCK),
        ("localtimestamp()", CLOCK),
        ("current_date()", CLOCK),
        ("curdate()", CLOCK),
        ("current_time()", CLOCK),
        ("unix_timestamp()", CLOCK),
        ("to_unix_timestamp(current_timestamp())", CLOCK),
        ("datediff(current_date(), stime)", CLOCK),
        ("cast('now' AS timestamp)", CLOCK),
        ("cast('today UTC' AS date)", CLOCK),
        ("cast(' Now ' AS timestamp_ntz)", CLOCK),
        ("try_cast('yesterday' AS date)", CLOCK),
        ("cast(concat('n', 'ow') AS timestamp)", CLOCK),
        ("to_timestamp('now')", CLOCK),
        ("to_timestamp_ntz('now')", CLOCK),
        ("try_to_timestamp('now')", CLOCK),
        ("to_date('today')", CLOCK),
        ("to_date(trim(' today '))", CLOCK),
        ("timestamp('tomorrow')", CLOCK),
        ("date_add('today', 1)", CLOCK),
        ("stime > 'now'", CLOCK),
        ("timestamp 'now'", CLOCK),
        ('DATE"today"', CLOCK),
        ("timestamp_ntz 'yesterday' < stime", CLOCK),
        ("rand()", CHANCE),
        ("rand(42)", CHANCE),
        ("randn()", CHANCE),
        ("random()", CHANCE),
        ("uniform(1, 10)", CHANCE),
        ("randstr(5)", CHANCE),
        ("uuid()", CHANCE),
        ("shuffle(array(value))", CHANCE),
        ("monotonically_increasing_id()", CHANCE),
        ("spark_partition_id()", CHANCE),
        ("input_file_name()", CHANCE),
        ("input_file_block_start()", CHANCE),
        ("reflect('java.util.UUID', 'randomUUID')", CHANCE),
    ],
)
def test_what_looks_at_the_clock_or_leaves_it_to_chance_is_refused(expression: str, said: str, rows: DataFrame) -> None:
    with pytest.raises(UsageError, match=said):
        check_plan(rows.withColumn("y", F.expr(expression)), "node n")


@pytest.mark.parametrize(
    "expression",
    [
        "cast('epoch' AS timestamp)", "cast('2026-01-01' AS date)", "cast('nowhere' AS string)", "to_date(key)",
        "cast(key AS timestamp)", "to_timestamp('2026-01-01')", "timestamp '2026-01-01'", "unix_timestamp(stime)",
        "timestamp '2026-01-01' < stime AND key = 'now'", "date_trunc('day', stime)", "current_timezone()", "version()",
        "current_user()", "current_database()", "hash(key)", "xxhash64(key)", "sentences(key)",
    ],
)  # fmt: skip
def test_what_says_the_same_at_each_call_is_taken(expression: str, rows: DataFrame) -> None:
    check_plan(rows.withColumn("y", F.expr(expression)), "node n")


ORDER, ROUNDING = "the order in which Spark brings rows together", "equal up to rounding only"
#: A call of each of Spark's aggregate functions, and what is said of it.
WARNED = {
    ORDER: [
        "any_value(value)", "approx_percentile(value, 0.5)", "approx_top_k(key)",
        "approx_top_k_accumulate(key)", "array_agg(value)", "collect_list(value)", "collect_set(value)",
        "collect_union(array(value))", "first(value)", "first_value(value)", "histogram_numeric(value, 5)",
        "hll_sketch_agg(key)", "hll_union_agg(bytes)", "kll_merge_agg_bigint(bytes)",
        "kll_merge_agg_double(bytes)", "kll_merge_agg_float(bytes)", "kll_sketch_agg_bigint(value)",
        "kll_sketch_agg_double(x)", "kll_sketch_agg_float(f)", "last(value)", "last_value(value)",
        "listagg(key)", "mode(value)", "percentile_approx(value, 0.5)", "string_agg(key)",
        "theta_intersection_agg(bytes)", "theta_sketch_agg(key)", "theta_union_agg(bytes)",
        "tuple_intersection_agg_double(bytes)", "tuple_intersection_agg_integer(bytes)",
        "tuple_sketch_agg_double(key, x)", "tuple_sketch_agg_integer(key, i)", "tuple_union_agg_double(bytes)",
        "tuple_union_agg_integer(bytes)",
    ],
    ROUNDING: [
        "avg(x)", "corr(x, x)", "covar_pop(x, x)", "covar_samp(x, x)", "kurtosis(value)", "mean(x)",
        "regr_avgx(value, x)", "regr_avgy(x, value)", "regr_intercept(x, x)", "regr_r2(x, x)", "regr_slope(x, x)",
        "regr_sxx(x, x)", "regr_sxy(x, x)", "regr_syy(x, x)", "skewness(value)", "std(x)", "stddev(value)",
        "stddev_pop(value)", "stddev_samp(x)", "sum(f)", "try_avg(x)", "try_sum(x)", "var_pop(x)",
        "var_samp(value)", "variance(x)",
    ],
}  # fmt: skip
#: The same in every order; one that takes sketches as this table has none; and one of metric views.
EXACT = """
    any approx_count_distinct bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or
    count count_if count_min_sketch every grouping grouping_id max max_by median min min_by percentile percentile_cont
    percentile_disc regr_count some approx_top_k_combine measure
"""


@pytest.mark.parametrize(("call", "said"), [(call, said) for said, calls in WARNED.items() for call in calls])
def test_an_aggregate_that_depends_on_the_order_of_rows_is_warned_of(
    call: str, said: str, rows: DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    check_plan(rows.groupBy(F.window("stime", "1 second")).agg(F.expr(call)), "node n")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert said in warning


def test_exact_aggregates_are_taken_in_silence(rows: DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    calls = ["sum(value)", "avg(value)", "sum(cast(x AS decimal(20,2)))", "median(value)", "count_if(value > 1)",
             "approx_count_distinct(key)", "max_by(key, value)", "bool_or(value > 1)", "regr_count(x, x)"]  # fmt: skip
    check_plan(rows.groupBy(F.window("stime", "1 second")).agg(*map(F.expr, calls)), "node n")
    assert not caplog.records


def test_each_aggregate_function_of_spark_is_known(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    identifiers = registry.listFunction()
    infos = [registry.lookupFunction(identifiers.apply(i)).get() for i in range(identifiers.size())]
    found = {str(info.getName()) for info in infos if info.getGroup() == "agg_funcs"}
    known = {call.partition("(")[0] for calls in WARNED.values() for call in calls}
    assert found - known - set(EXACT.split()) == set()
