# The only commands that people and machines run. `make demo` and `make test` install what they need.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FULL ?=
LIMIT ?=
SEED ?=
SEEDS ?= 200
PROCESSES ?= $(shell getconf _NPROCESSORS_ONLN)
CASE ?=
JSON ?=
N ?= 200000
SECONDS_MAX ?= 3600
KILLS ?= 50
SCHEDULES ?= 1000
DEFINITIONS ?= 500
CHANGES ?= 200
HUNTS ?= tests/simulation/hunts.json
STATES ?= 200000
INPUTS ?= 2000000
FRAMES ?= 1000000
BASE ?=
SHARE ?= now
TESTS ?=
WORKERS ?= 4
UPGRADE ?=
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
EVIDENCE := docs/evidence

# Images of containers often set this, and then each of the thousand processes that the tests start
# would compile the package anew: a third of all their processor time.
unexport PYTHONDONTWRITEBYTECODE
STAMP := $(VENV)/.installed

.PHONY: install demo quick test test-all test-share durations types lint bytecode sim bugs model-check
.PHONY: evidence crash-states corruption fuzz fuzz-servers network-matrix chaos chaos-storm interop
.PHONY: smoke bench bench-client bench-failover bench-idle bench-storage bench-gate league league-spark original
.PHONY: docs docs-check chart site dist man sbom constraints clean spark-kill spark-proofs states

install: $(STAMP)

# Everything that is installed has a hash of the two files; the project itself is this folder.
INSTALL := $(BIN)/python -m pip install --quiet --no-deps
$(STAMP): pyproject.toml constraints.txt constraints-build.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("waltz needs Python 3.11 or newer, this is %d.%d: set PYTHON=..." % v)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes --only-binary :all: --requirement constraints-build.txt
	$(INSTALL) --require-hashes --no-build-isolation --requirement constraints.txt
	$(INSTALL) --no-build-isolation --no-index --editable .
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m demo $(if $(FULL),--full) $(if $(LIMIT),--limit $(LIMIT)) $(if $(SEED),--seed $(SEED))

quick: $(STAMP) lint types
	$(BIN)/python -m tests.rooms $(if $(BASE),--base $(BASE))

test: $(STAMP)
	$(MAKE) --jobs 2 types lint bytecode
	$(PYTEST) -m 'not long'

test-all: $(STAMP)
	$(MAKE) --jobs 2 types lint bytecode
	$(PYTEST)

test-share: $(STAMP)
	$(PYTEST) --share $(SHARE)

durations: WORKERS = 2
durations: $(STAMP)
	$(PYTEST) --record-durations tests/durations.tsv $(TESTS)

# While the types are checked, one process compiles what each worker of pytest would.
bytecode: $(STAMP)
	@$(BIN)/python -m pytest --collect-only > $(VENV)/.collected || { tail -n 40 $(VENV)/.collected; false; }

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/codespell

types: $(STAMP)
	$(BIN)/mypy

sim: $(STAMP)
	$(BIN)/python -m proofs --seeds $(SEEDS) --processes $(PROCESSES) $(if $(SEED),--seed $(SEED))

bugs: $(STAMP)
	$(BIN)/python -m proofs --bugs $(HUNTS)

model-check: $(STAMP)
	$(BIN)/python -m proofs.model_check $(if $(CASE),--case "$(CASE)")

evidence: $(STAMP)
	$(BIN)/python -m proofs --seeds $(SEEDS) --processes $(PROCESSES) $(if $(SEED),--seed $(SEED)) --evidence $(EVIDENCE).json
	$(BIN)/python -m proofs.model_check --evidence $(EVIDENCE).json
	$(BIN)/python -m proofs.evidence $(EVIDENCE).json --hunts tests/simulation/hunts.json > $(EVIDENCE).md

crash-states: $(STAMP)
	$(BIN)/python -m tests.storage.crash_states --states $(STATES) $(if $(SEED),--seed $(SEED))

corruption: $(STAMP)
	$(BIN)/python -m tests.storage.corruption_run

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) $(if $(SEED),--seed $(SEED))

states: $(STAMP)
	$(BIN)/python -m tests.states $(if $(CASE),--only "$(CASE)")

fuzz-servers: $(STAMP)
	$(BIN)/python -m tests.fuzz.processes --frames $(FRAMES) $(if $(SEED),--seed $(SEED))

network-matrix: $(STAMP)
	$(BIN)/python -m tests.network $(if $(SEED),--seed $(SEED))

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --schedules $(SCHEDULES) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

chaos-storm: $(STAMP)
	$(BIN)/python -m tests.chaos.storm

interop: $(STAMP)
	$(BIN)/python -m pytest tests/interop
smoke: $(STAMP)
	$(BIN)/python -m tests.smoke --transactions $(N) --seconds $(SECONDS_MAX) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

spark-kill: $(STAMP)
	$(BIN)/python -c 'from tests.spark.sink_kills import main; main()' --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.spark.kills --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.spark.table_kills --format delta --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.spark.table_kills --format iceberg --kills $(KILLS) $(if $(SEED),--seed $(SEED))

spark-proofs: $(STAMP)
	$(BIN)/python -m tests.spark.random_definitions --definitions $(DEFINITIONS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.spark.changed_cells --changes $(CHANGES) $(if $(SEED),--seed $(SEED))

bench: $(STAMP)
	$(BIN)/python -m bench

bench-gate: $(STAMP)
	$(BIN)/python -m bench.gate

league: $(STAMP)
	$(BIN)/python -m bench.peers --json bench/league.json > docs/league.md

# The same page, with its section on Spark measured anew.
league-spark: $(STAMP)
	$(BIN)/python -m bench.spark_league --json bench/spark_league.json
	$(BIN)/python -m bench.peers --print bench/league.json > docs/league.md

original: $(STAMP)
	$(BIN)/waltz bench 'original-*' --with-tls --json > bench/original.json
	$(BIN)/python -m bench.original bench/original.json > docs/original.md

bench-client: $(STAMP)
	$(BIN)/python -m bench.client $(if $(JSON),--json $(JSON))

bench-idle: $(STAMP)
	$(BIN)/python -m bench.idle_connections

bench-storage: $(STAMP)
	$(BIN)/python -m bench.storage

bench-failover: $(STAMP)
	$(BIN)/python -m bench.failover --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

docs: $(STAMP)
	$(BIN)/python -m waltz.wire.wire_document > docs/formats/wire.md
	$(BIN)/python -m waltz.storage.disk_document > docs/formats/disk.md
	$(BIN)/python -m waltz.storage.journal.journal_document > docs/formats/journal.md
	$(BIN)/python -m waltz.archive.archive_document > docs/formats/archive.md
	$(BIN)/python -m waltz.cluster.metadata_document > docs/formats/metadata.md
	$(BIN)/python -m waltz.configuration.settings_document storage > docs/operating/storage-configuration.md
	$(BIN)/python -m waltz.configuration.settings_document server > docs/operating/server-configuration.md
	$(BIN)/python -m waltz.configuration.settings_document archive > docs/operating/archive-configuration.md
	$(BIN)/python -m waltz.configuration.settings_document outbox > docs/operating/outbox-configuration.md
	$(BIN)/python -m waltz.configuration.settings_document bridge > docs/operating/bridge-configuration.md
	$(BIN)/python -m waltz.configuration.settings_document tools > docs/operating/tools-configuration.md
	$(BIN)/python -m waltz.cli.metrics_document > docs/operating/metrics.md
	$(BIN)/python -m deploy
	$(BIN)/python -m tests.events > docs/operating/events.md
	$(BIN)/python -m tests.rows > docs/rows.md
	$(BIN)/python -m tests.api > docs/api.md
	$(BIN)/python -m docs.pictures

docs-check: docs
	git diff --exit-code --stat docs/formats docs/pictures docs/rows.md docs/api.md docs/operating/*-configuration.md docs/operating/metrics.md docs/operating/events.md deploy

# Render the chart's sets of values anew, with a Helm that is built where there is none: minutes, once.
chart: $(STAMP)
	$(BIN)/python -m tests.deploy.rendering

site: $(STAMP)
	$(BIN)/python -m mkdocs build --strict

# The same commit gives the same bytes: archives have the time of the commit.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: $(STAMP)
	$(BIN)/python -m build --no-isolation

# A man page of each command, for packagers: build/man/*.1 has the date of the commit.
man: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
man: $(STAMP)
	$(BIN)/python -m supply.man_pages build/man

# The bill of materials of the package, and one of each extra, next to what `make dist` builds.
sbom: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
sbom: $(STAMP)
	$(BIN)/python -m supply dist

# Print the pins anew after a change of pyproject.toml: all stay, but those of UPGRADE='name name' or UPGRADE=all.
PIN = UV_CUSTOM_COMPILE_COMMAND='make constraints' $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate \
	--no-python-downloads --python-version 3.11.5 --no-emit-index-url --no-emit-find-links \
	$(if $(filter all,$(UPGRADE)),--upgrade,$(UPGRADE:%=--upgrade-package %))
constraints:
	$(PIN) --all-extras pyproject.toml --output-file constraints.txt
	$(PIN) --group build --constraint constraints.txt --output-file constraints-build.txt
	$(PIN) --extra archive --extra console --constraint constraints.txt pyproject.toml --output-file deploy/docker/requirements.txt
	$(PIN) --constraint constraints.txt tests/deploy/requirements.in --output-file tests/deploy/requirements.txt

clean:
	rm -rf $(VENV) demo-output build dist .mypy_cache .pytest_cache .ruff_cache
