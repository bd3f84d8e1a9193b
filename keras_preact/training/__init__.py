"""Training: the paper's recipe as data, the trainer, checkpoints, and run folders."""

from keras_preact.errors import Diverged, Interrupted
from keras_preact.optimizers import CoupledSGD
from keras_preact.training.build import build_model
from keras_preact.training.checkpoints import Checkpoint
from keras_preact.training.comparison import compare, orders, resume_comparison
from keras_preact.training.config import RunConfig
from keras_preact.training.device import PRECISIONS, default_precision
from keras_preact.training.evaluation import evaluate
from keras_preact.training.recipe import (
    RECIPES,
    AdamRecipe,
    FastRecipe,
    Recipe,
    get_recipe,
)
from keras_preact.training.runs import RunFolder, RunLocked, next_free_folder
from keras_preact.training.schedules import CosineSchedule, StepSchedule
from keras_preact.training.threads import choose_threads, has_idle_cores
from keras_preact.training.trainer import resume, start

__all__ = [
    "PRECISIONS",
    "RECIPES",
    "AdamRecipe",
    "Checkpoint",
    "CosineSchedule",
    "CoupledSGD",
    "Diverged",
    "FastRecipe",
    "Interrupted",
    "Recipe",
    "RunConfig",
    "RunFolder",
    "RunLocked",
    "StepSchedule",
    "build_model",
    "choose_threads",
    "compare",
    "default_precision",
    "evaluate",
    "get_recipe",
    "has_idle_cores",
    "next_free_folder",
    "orders",
    "resume",
    "resume_comparison",
    "start",
]
