"""Speed and memory compared with other libraries: `make bench`, or `python -m benchmarks --help`."""
