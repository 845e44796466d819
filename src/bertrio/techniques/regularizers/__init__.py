"""Regularizers: penalties that keep a model smooth, near its own average, near a teacher, or small.

`norms` penalises weights; all others are `Regularizer`s of a step's outputs. `divergences` has distances of two outputs
for the same rows, and `moving_average` the averaged weights.
"""

from bertrio.techniques.regularizers.base import ForwardContext, Regularizer, RunSetup
from bertrio.techniques.regularizers.bregman import Bregman
from bertrio.techniques.regularizers.distillation import Distillation
from bertrio.techniques.regularizers.r_drop import RDrop
from bertrio.techniques.regularizers.smart import Smart

__all__ = ["REGULARIZERS", "ForwardContext", "Regularizer", "RunSetup"]

# By the name of their block in params.yaml, in the order in which they draw random numbers
REGULARIZERS: dict[str, type[Regularizer]] = {
    "smart": Smart,
    "bregman": Bregman,
    "r_drop": RDrop,
    "distill": Distillation,
}
