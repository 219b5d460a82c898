# make demo    a million changes from append to verify, step by step
# make test    the main test suite
# make check   format, lint, types, layers
# make crash   many kill -9 rounds, and ten thousand simulations (hours)
# make peers   comparison with a real Kafka and its clients, from Maven's jars
# make fuzz    a million invalid frames against the Kafka endpoint
# make bench   the benchmarks of docs/benchmarks.md
# make bench-peers   the benchmarks against a real Kafka and table formats, and their pictures
# make clean   remove everything that make created

VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

# If this is set, every process recompiles the package, and pytest every test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check crash peers fuzz bench bench-peers clean java tools postgres

demo: $(READY) java
	@$(PYTHON) -m demo

test: $(READY) java tools
	$(PYTHON) -m pytest -m "not soak and not peers" -n 4 --no-loadscope-reorder

check: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

crash: $(READY) java tools
	$(PYTHON) -m pytest -m soak tests

peers: $(READY) java
	$(PYTHON) -m pytest -m peers tests/peers

fuzz: $(READY)
	LASTWORD_FUZZ_FRAMES=1000000 $(PYTHON) -m pytest tests/e2e/test_broker_fuzz.py --timeout 3600

bench: $(READY) java postgres
	$(PYTHON) -m bench

bench-peers: $(READY) java
	$(PYTHON) -W ignore -m bench.kafka --json bench/results/kafka.json
	$(PYTHON) -W ignore -m bench.tables --json bench/results/tables.json
	$(PYTHON) -m bench.picture --fill docs/benchmarks.md

$(READY): pyproject.toml constraints.txt scripts/make-venv
	scripts/make-venv $(VENV)
	@touch $@

tools: $(READY) java
	@scripts/ensure-kcat
	@scripts/ensure-postgres
	@scripts/ensure-cc
	@scripts/ensure-chromium
	@scripts/ensure-promtool $(VENV)/bin
	@scripts/ensure-spark-archive $(VENV)

java:
	@scripts/ensure-java

postgres:
	@scripts/ensure-postgres
	@scripts/ensure-chromium

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
