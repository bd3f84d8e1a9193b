"""The paper's tables as grids of runs, the runner for missing runs, and the store of results."""

from keras_preact.experiments.cost import costs
from keras_preact.experiments.grid import BUDGETS, Budget, Experiment, Row
from keras_preact.experiments.initialization import InitialGradients, initial_gradients, record_initial_gradients
from keras_preact.experiments.page import write_results
from keras_preact.experiments.probe import read_propagation
from keras_preact.experiments.report import (
    COLUMNS,
    Line,
    cells,
    lines,
    markdown,
    verdict,
    without_empty_columns,
)
from keras_preact.experiments.runner import Job, duration, plan, run_missing
from keras_preact.experiments.statistics import Difference, binomial_deviation, difference, seeds_needed
from keras_preact.experiments.store import Run, Store, keep
from keras_preact.experiments.tables import EXPERIMENTS
from keras_preact.experiments.workers import default_workers, run_in_workers

__all__ = [
    "BUDGETS",
    "COLUMNS",
    "EXPERIMENTS",
    "Budget",
    "Difference",
    "Experiment",
    "InitialGradients",
    "Job",
    "Line",
    "Row",
    "Run",
    "Store",
    "binomial_deviation",
    "cells",
    "costs",
    "default_workers",
    "difference",
    "duration",
    "initial_gradients",
    "keep",
    "lines",
    "markdown",
    "plan",
    "read_propagation",
    "record_initial_gradients",
    "run_in_workers",
    "run_missing",
    "seeds_needed",
    "verdict",
    "without_empty_columns",
    "write_results",
]
