"""Speed and memory compared with other libraries: `make bench`, or `python -m benchmarks --help`."""

import os

# As the command `keras-preact` does. Without AVX-512, TensorFlow would turn oneDNN off.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
