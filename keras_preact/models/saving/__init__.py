"""Files of networks: weights by name, their formats, and checks of files that are not trusted.

`keras_preact.models` and `keras_preact.interop` export the functions that users call.
"""
