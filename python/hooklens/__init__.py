"""Reads dumps written by hooklens as named NumPy arrays.

>>> import hooklens
>>> dump = hooklens.load("activations")              # a folder, merged shards, or one .safetensors file
>>> dump.names                                       # doctest: +SKIP
['blocks.0.hook_resid_post', ...]
>>> x = dump["blocks.0.hook_resid_post"]             # doctest: +SKIP
>>> x.shape, x[3], x[:100], numpy.asarray(x)         # read on access # doctest: +SKIP
"""

from ._dump import Batch, Dump, Incomplete, Point, load
from ._latents import Latents
from ._store import ActivationStore, Places

__all__ = ["ActivationStore", "Batch", "Dump", "Incomplete", "Latents", "Places", "Point", "load"]
