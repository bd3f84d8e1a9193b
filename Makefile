# make demo           train the original and the pre-activation ResNet side by side on real images (2 to 3 minutes on two cores)
# make test           style, types, tests, notebooks (12 to 25 minutes on two cores)
# make test-thorough  tests that take seconds each, and the solutions of the course; continuous integration runs them after `make test`
# make test-slow      tests that take minutes each
# make test-torch     tests of layers, models, data, training, analysis, experiments and commands on PyTorch
# make test-jax       the same on JAX
# make test-oldest    tests with every lower bound of pyproject.toml installed exactly, in .venv-oldest
# make types          style, and types on Linux, macOS and Windows
# make audit          known vulnerabilities of the installed packages (needs the internet)
# make lab            open the course in JupyterLab
# make bench          measure speed and memory against plain Keras, keras.applications, keras_hub and PyTorch, into runs/benchmarks
# make reproduce      list the runs of the paper's tables and the cost of missing ones on this machine; BUDGET=smoke, cpu, deep or paper
# make site           build the site (course, guides, results, API reference) into build/site
# make dist           build the wheel and the source distribution into dist/ and check them
# make notebooks      rerun every notebook and store its outputs
#
# The first time, each creates .venv and installs what it needs from the package index.
# PYTHON=python3.12 chooses the interpreter, JOBS=8 the number of parallel tests,
# LAB=--allow-root or LAB="--no-browser --ip=…" the options of JupyterLab.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BUDGET ?= cpu

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# By default, TensorFlow turns oneDNN off on processors without AVX-512, although it is faster there too.
ONEDNN = TF_ENABLE_ONEDNN_OPTS=1
# Keeps TensorFlow's log lines out of stored outputs, which are those of the CPU.
QUIET = $(ONEDNN) KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
ON_BACKENDS = $(addprefix tests/, layers models data training analysis experiments test_cli.py test_console.py test_uses.py)

VALIDATE = $(BIN)/python -m keras_preact.course.validate --jobs $(JOBS)

# Runs the command after the first word, then prints that word and the command's time.
TIMED = bash -c 'SECONDS=0; "$$@"; status=$$?; echo "$$0: $$SECONDS s"; exit $$status'

.PHONY: demo test test-thorough test-slow test-torch test-jax test-oldest types audit lab bench reproduce site dist notebooks
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/keras-preact demo
	@echo "to use the command keras-preact: . $(BIN)/activate"

test: $(VENV)/installed-tests
	@$(TIMED) style $(BIN)/ruff check .
	@$(TIMED) format $(BIN)/ruff format --check .
	@$(TIMED) types $(BIN)/mypy
	@$(TIMED) tests $(BIN)/python -m pytest -n $(JOBS) -m "not slow and not thorough" --durations 10
	@$(QUIET) $(TIMED) notebooks $(VALIDATE) --ignore notebooks/zh --ignore notebooks/solutions notebooks

test-thorough: $(VENV)/installed-tests
	@$(TIMED) "thorough tests" $(BIN)/python -m pytest -n $(JOBS) -m "thorough and not slow" --durations 10
	@$(QUIET) $(TIMED) solutions $(VALIDATE) notebooks/solutions

test-slow: $(VENV)/installed-tests
	$(BIN)/python -m pytest -n $(JOBS) -m slow

test-torch: $(VENV)/installed-tests
	$(BIN)/python -c "import torch" 2>/dev/null || $(PIP) --editable '.[torch]'
	KERAS_BACKEND=torch OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ON_BACKENDS)

test-jax: $(VENV)/installed-tests
	KERAS_BACKEND=jax $(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ON_BACKENDS)

test-oldest: $(VENV)-oldest/installed
	$(VENV)-oldest/bin/python -m pytest -n $(JOBS) -m "not slow and not thorough" tests

types: $(VENV)/installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin
	$(BIN)/mypy --platform win32

audit: $(VENV)/installed-tests
	$(PIP) pip-audit
	$(BIN)/pip-audit --skip-editable

lab: $(VENV)/installed
	@# With PYTEST_CURRENT_TEST set, kernels leave TensorFlow's log lines to the terminal instead of showing them below every first cell.
	$(ONEDNN) PYTEST_CURRENT_TEST=lab TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/jupyter lab $(LAB) notebooks

bench: $(VENV)/installed
	@$(BIN)/python -c "import importlib.util as i; assert i.find_spec('torch') and i.find_spec('keras_hub')" 2>/dev/null || $(PIP) --editable '.[bench]'
	$(ONEDNN) $(BIN)/python -m benchmarks

reproduce: $(VENV)/installed
	$(BIN)/keras-preact reproduce all --budget $(BUDGET) --cost

site: $(VENV)/installed-tests
	rm -rf build/site
	$(QUIET) $(BIN)/python -m sphinx -q -E -W --keep-going -c docs -d build/doctrees . build/site
	@echo "open build/site/index.html"

dist: $(VENV)/installed-tests
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*

notebooks: $(VENV)/installed-tests
	PYTEST_CURRENT_TEST=1 $(QUIET) $(BIN)/jupyter nbconvert --to notebook --execute --inplace notebooks/*.ipynb notebooks/solutions/*.ipynb
	$(BIN)/python tests/test_notebooks.py

$(VENV)/bin/python:
	@$(PYTHON) -c "import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))" \
	  || { echo "keras_preact needs Python 3.10 to 3.13, which TensorFlow supports; choose one with make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# The pip of 2023 in Python 3.10 and 3.11 needs more than ten minutes to choose versions; today's pip needs seconds.
	$(PIP) --upgrade pip

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing keras_preact and its dependencies into $(VENV) (a few minutes, once)"
	$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/installed-tests: pyproject.toml $(VENV)/installed
	@echo "installing the dependencies of the tests into $(VENV)"
	$(PIP) --editable '.[all,test,export]'
	@touch $@

$(VENV)-oldest/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --upgrade pip uv
	$(VENV)-oldest/bin/uv pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct --editable '.[all,test]'
	@touch $@
