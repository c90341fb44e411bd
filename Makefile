# The one door: people and CI call nothing else. `make` lists the targets.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready
BENCH_READY := .venv/.bench-ready
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

.DEFAULT_GOAL := help
.PHONY: help setup serve test check format docs bench faults audit constraints clean
MAKEFLAGS += --no-print-directory

help: ## list the targets
	@echo 'Skep: make <target> [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install Skep into it (the other targets do this by themselves)
	@echo 'Ready. Try: make serve'

serve: $(READY) ## run Skep on an embedded PostgreSQL; ARGS="--database-url URL" uses yours
	@$(BIN)/skep serve $(ARGS)

test: $(READY) ## run the tests; ARGS="tests/unit -k errors" runs some
	@$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(READY) ## lint, format, types, import contracts, generated files, prose, links of the documentation
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo 'These files are not formatted; run: make format'; $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/python -m tools.make_sync --check
	@$(BIN)/python -m tools.make_schema --check
	@$(BIN)/python -m tools.prose > .venv/prose.log || { cat .venv/prose.log; echo 'python -m tools.prose --list shows them'; exit 1; }
	@$(BIN)/pyright
	@$(BIN)/lint-imports > .venv/imports.log || { cat .venv/imports.log; exit 1; }
	@$(SITE) build --strict --site-dir .venv/site > .venv/site.log 2>&1 || { cat .venv/site.log; exit 1; }
	@echo 'check: all good'

format: $(READY) ## format the code, fix what can be fixed, generate the synchronous client and schema.sql
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .
	@$(BIN)/python -m tools.make_sync
	@$(BIN)/python -m tools.make_schema

docs: $(READY) ## serve the documentation on port 8000
	@$(SITE) serve --quiet

bench: $(BENCH_READY) ## run the benchmarks
	@$(BIN)/python -m bench $(ARGS)

faults: $(READY) ## try to lose a message: SEED=7 SECONDS=600; the same seed is the same plan
	@$(BIN)/python -m faults run $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

audit: $(READY) ## ask PyPI for known holes in what constraints.txt pins
	@$(BIN)/uv tool run pip-audit --requirement constraints.txt --no-deps --disable-pip

constraints: $(READY) ## pin the newest versions of all dependencies in constraints.txt
	@$(BIN)/uv pip compile --quiet --upgrade --all-extras --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	    --universal --output-file constraints.txt pyproject.toml

clean: ## remove .venv and caches
	@rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
	@find src tests tools faults bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt src/skep/dashboard/package.json
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo 'Skep needs Python 3.11 or newer. Point to one with: make setup PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	    { echo 'This Python cannot create virtual environments. On Debian and Ubuntu: apt-get install python3-venv'; exit 1; }
	@echo 'Setting up .venv (once) ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@test -x $(BIN)/uv || $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev,server,spark]'
	@$(BIN)/python -m skep.dashboard.fetch || echo 'Everything works but the dashboard. When npm does: $(BIN)/python -m skep.dashboard.fetch'
	@touch $@

# The peers and the plotting are for the benchmarks only: no other target installs them.
$(BENCH_READY): $(READY)
	@echo 'Installing what the benchmarks compare with (once) ...'
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[bench]'
	@touch $@
