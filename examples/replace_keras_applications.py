"""Replace keras.applications.ResNet50V2 in a program by one changed line.

    python examples/replace_keras_applications.py [--weights imagenet]

The network that `load_keras_applications` returns has the same weights and the same logits. Its units are layers, so
you can analyze them, take feature maps, freeze stages and fold batch norms. `--weights imagenet` downloads the trained
weights; without it both networks are random.
"""

import argparse

import keras
import numpy as np

from keras_preact.analysis import check_identity_path
from keras_preact.interop import load_keras_applications


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default=None, choices=["imagenet"])
    weights = parser.parse_args().weights

    keras.utils.set_random_seed(0)
    before = keras.applications.ResNet50V2(weights=weights, classifier_activation=None)
    # The changed line. Elsewhere you need no model of keras.applications: load_keras_applications("ResNet50V2").
    after = load_keras_applications(before)

    images = np.random.default_rng(0).uniform(-1, 1, (2, 224, 224, 3)).astype("float32")
    logits = before.predict(images, verbose=0), after.predict(images, verbose=0)
    difference = np.abs(logits[0] - logits[1]).max() / np.abs(logits[0]).max()
    print(f"largest difference of the logits: {difference:.0e} of the largest logit")
    print(check_identity_path(after))


if __name__ == "__main__":
    main()
