import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg


@pytest.fixture(scope="session")
def parts():
    """Return a function of axes and a gid that returns the patches with it."""
    return lambda axes, gid: [patch for patch in axes.patches if patch.get_gid() == gid]


@pytest.fixture(scope="session")
def check_texts(parts):
    """Return a function that checks that the texts of a figure can be read, and returns the labels of the boxes.

    No text leaves the figure, overlaps another or leaves its box, and none is smaller than 8 points. The result has a
    list for each panel, from top to bottom and, at the same height, from left to right.
    """

    def check(figure):
        renderer = FigureCanvasAgg(figure).get_renderer()  # without a drawing: no layout moves anything
        assert figure.get_size_inches()[0] <= 10.5
        found = [(text, text.get_window_extent(renderer)) for axes in figure.axes for text in axes.texts]
        for text, area in found:
            assert figure.bbox.x0 <= area.x0 and area.x1 <= figure.bbox.x1, text
            assert figure.bbox.y0 <= area.y0 and area.y1 <= figure.bbox.y1, text
            assert text.get_fontsize() >= 8
        for (first, one), (second, other) in itertools.combinations(found, 2):
            assert not one.overlaps(other), (first, second)
        return [_labels(axes, parts(axes, "box"), found) for axes in figure.axes]

    def _labels(axes, boxes, found):
        labels = []
        for patch in sorted(boxes, key=lambda patch: (-round(patch.get_extents().y1), patch.get_extents().x0)):
            box = patch.get_extents()
            inside = [(text, area) for text, area in found if text.axes is axes and area.overlaps(box)]
            for text, area in inside:
                assert box.x0 <= area.x0 and area.x1 <= box.x1 and box.y0 <= area.y0 and area.y1 <= box.y1, text
            labels.append(" ".join(text.get_text() for text, _ in inside))
        return labels

    return check
