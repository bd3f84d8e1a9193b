"""Training: the paper's recipe as data, the trainer, checkpoints, run folders."""

from keras_preact.training.checkpoints import Checkpoint
from keras_preact.training.comparison import compare, orders, resume_comparison
from keras_preact.training.device import PRECISIONS, default_precision
from keras_preact.training.recipe import RECIPES, CosineSchedule, CoupledSGD, Recipe, StepSchedule, get_recipe
from keras_preact.training.runs import RunFolder, Taken, next_free_folder
from keras_preact.training.trainer import Diverged, Interrupted, RunConfig, build_model, evaluate, resume, start

__all__ = [
    "PRECISIONS",
    "RECIPES",
    "Checkpoint",
    "CosineSchedule",
    "CoupledSGD",
    "Diverged",
    "Interrupted",
    "Recipe",
    "RunConfig",
    "RunFolder",
    "StepSchedule",
    "Taken",
    "build_model",
    "compare",
    "default_precision",
    "evaluate",
    "get_recipe",
    "next_free_folder",
    "orders",
    "resume",
    "resume_comparison",
    "start",
]
