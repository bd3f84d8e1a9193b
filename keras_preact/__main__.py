"""`python -m keras_preact` runs the command `keras-preact`."""

from keras_preact.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
