# make demo       train the original and the pre-activation ResNet side by side on real images (about 3.5 minutes on two cores)
# make test       style, types, tests, notebooks (less than half an hour on two cores)
# make test-slow  the tests that take longer
# make test-torch the tests of layers, networks, data, training, analysis and experiments on PyTorch
# make lab        open the course in JupyterLab
# make bench      speed and memory against what people use today, into runs/benchmarks
# make reproduce  what is missing of the paper's tables, and what it would cost on this machine; BUDGET=smoke, cpu, deep, paper
# make site       write the course and a reference of the package as web pages into build/site
# make notebooks  run every notebook again and store its outputs
#
# Each makes .venv and installs what it needs from the package index, where that is not done yet.
# PYTHON=python3.12 chooses the interpreter, JOBS=8 the number of tests run at once,
# LAB=--allow-root or LAB="--no-browser --ip=…" how JupyterLab starts.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BUDGET ?= cpu

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Of itself TensorFlow leaves oneDNN alone on processors without AVX-512, where it is faster too.
ONEDNN = TF_ENABLE_ONEDNN_OPTS=1
# TensorFlow's own log lines would stand in stored outputs; the figures here are those of the processor.
QUIET = $(ONEDNN) KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
ON_TORCH = $(addprefix tests/, layers models data training analysis experiments test_cli.py test_console.py test_uses.py)
NBVAL = -p no:python --nbval --nbval-current-env --nbval-sanitize-with tests/nbval.cfg --nbval-cell-timeout 300

.PHONY: demo test test-slow test-torch lab bench reproduce site notebooks
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/keras-preact demo
	@echo "the command keras-preact is in $(BIN): . $(BIN)/activate"

test: $(VENV)/installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow" --durations 20
	$(QUIET) $(BIN)/python -m pytest $(NBVAL) -n $(JOBS) --dist loadscope notebooks --ignore notebooks/zh

test-slow: $(VENV)/installed-tests
	$(BIN)/python -m pytest -n $(JOBS) -m slow

test-torch: $(VENV)/installed-tests
	$(BIN)/python -c "import torch" 2>/dev/null || $(PIP) --editable '.[torch]'
	KERAS_BACKEND=torch OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(ON_TORCH)

lab: $(VENV)/installed
	@# With this variable kernels leave TensorFlow's log lines to the terminal: they would stand in red below every first cell.
	$(ONEDNN) PYTEST_CURRENT_TEST=lab TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/jupyter lab $(LAB) notebooks

bench: $(VENV)/installed
	$(ONEDNN) $(BIN)/python -m benchmarks

reproduce: $(VENV)/installed
	$(BIN)/keras-preact reproduce all --budget $(BUDGET) --cost

site: $(VENV)/installed-tests
	$(BIN)/python notebooks/build_site.py

notebooks: $(VENV)/installed-tests
	PYTEST_CURRENT_TEST=1 $(QUIET) $(BIN)/jupyter nbconvert --to notebook --execute --inplace notebooks/*.ipynb notebooks/solutions/*.ipynb
	$(BIN)/python tests/test_notebooks.py

$(VENV)/bin/python:
	@$(PYTHON) -c "import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))" \
	  || { echo "keras_preact needs Python 3.10 to 3.13, for which there is TensorFlow; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# The pip of 2023 that Python 3.10 and 3.11 bring along needs more than ten minutes to choose versions; today's, seconds.
	$(PIP) --upgrade pip

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing keras_preact and what it needs into $(VENV) (once, some minutes)"
	$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/installed-tests: pyproject.toml $(VENV)/installed
	@echo "installing what the tests need into $(VENV)"
	$(PIP) --editable '.[all,test,export]'
	@touch $@
