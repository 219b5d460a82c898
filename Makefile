# make demo    the main job on embedded defaults, step by step
# make test    the main test suite
# make check   format, lint, types, layers
# make crash   many kill -9 rounds (minutes)
# make peers   beside a real Kafka and its clients, from Maven's jars
# make bench   the benchmarks of docs/benchmarks.md
# make clean   remove what make made

VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test check crash peers bench clean java

demo: $(READY) java
	@$(PYTHON) -m demo

test: $(READY) java
	$(PYTHON) -m pytest -m "not soak and not peers" -n 2 --dist loadfile

check: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

crash: $(READY) java
	$(PYTHON) -m pytest -m soak tests/crash

peers: $(READY) java
	$(PYTHON) -m pytest -m peers tests/peers

bench: $(READY) java
	$(PYTHON) -m bench

$(READY): pyproject.toml constraints.txt scripts/make-venv
	scripts/make-venv $(VENV)
	@touch $@

java:
	@scripts/ensure-java

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
