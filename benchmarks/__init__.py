"""Speed and memory against what people use today. `make bench`, or `python -m benchmarks --help`."""
