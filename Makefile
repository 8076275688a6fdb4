PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo quick test coverage docs package wheelhouse licences clean

install: .venv/.installed

.venv/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	# Machine code is made when first needed and kept: here, so that the first run need not wait for it.
	$(BIN)/abps bench --data uniform:8x32x8 --turns 1 --json >/dev/null
	$(BIN)/abps run --method random-k1 --model gam --rounds 2 --data icu-synthetic:centers=6 --out .venv/first --json >/dev/null
	rm -rf .venv/first
	touch $@

.venv/.test-installed: pyproject.toml | install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

demo: install
	$(BIN)/abps demo
	@echo "The report: abps-demo/report.html"

# The edit loop: what is quick and needs neither a browser, nor a cluster, nor real networks.
QUICK := tests/core tests/wire tests/privacy tests/evaluate tests/statistics tests/golden tests/test_names.py

# One worker more than there are cores: tests of real networks mostly wait.
SPREAD := -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist loadfile

quick: .venv/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist worksteal -m "not slow" $(QUICK)

test: .venv/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(SPREAD)

# Statements of src/abps that the tests run, here and in the processes that they start. Counting takes time and
# writes files: tests of start-up times and full disks may fail meanwhile.
coverage: .venv/.test-installed
	rm -rf build/coverage
	mkdir -p build/coverage
	-$(BIN)/coverage run -m pytest $(SPREAD)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

docs: .venv/.test-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation: build/site/index.html"

# Wheel and source distribution, checked as the package index checks them.
package: .venv/.test-installed
	rm -rf build/dist
	$(BIN)/python -m build --quiet --outdir build/dist
	$(BIN)/twine check --strict build/dist/*

# For machines without a network: everything that a hospital installs, in one folder to carry over. There:
#   python3 -m venv abps && abps/bin/pip install --no-index --find-links wheelhouse 'abps[flare,privacy]'
EXTRAS ?= flare,privacy
wheelhouse: package
	rm -rf build/wheelhouse
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --wheel-dir build/wheelhouse \
		"$$(ls build/dist/*.whl)[$(EXTRAS)]"
	@echo "The wheels: build/wheelhouse"

licences: .venv/.test-installed
	$(BIN)/python tools/sbom.py --licences build/licences.md --out build/sbom.json

clean:
	rm -rf .venv build dist abps-demo
