"""All figures of the command line and the course. No other package imports matplotlib.

Series differ in marker as well as color. Each figure has a description in words: `alt_text`.
"""

from keras_preact.plots.base import COLOURS, MARKERS, alt_text, draw, look
from keras_preact.plots.depth import depth_figure, mechanism_figure, orders_figure, screening_figure
from keras_preact.plots.diagrams import blocks_figure, network_figure, terms_figure
from keras_preact.plots.propagation import gradient_figure, lesions_figure, profiles_figure, propagation_figure
from keras_preact.plots.tables import table_curves_figure, table_figure
from keras_preact.plots.training import curves_figure, draw_curves
from keras_preact.plots.units import placements_figure, unit_figure

__all__ = [
    "COLOURS",
    "MARKERS",
    "alt_text",
    "blocks_figure",
    "curves_figure",
    "depth_figure",
    "draw",
    "draw_curves",
    "gradient_figure",
    "lesions_figure",
    "look",
    "mechanism_figure",
    "network_figure",
    "orders_figure",
    "placements_figure",
    "profiles_figure",
    "propagation_figure",
    "screening_figure",
    "table_curves_figure",
    "table_figure",
    "terms_figure",
    "unit_figure",
]
