"""params.yaml as typed, validated objects.

`load_params` is the entry point: it reads the file, and checks names, types, ranges and combinations before any work
starts. One message reports all wrong values and names or, if there are none, all that conflict.
"""

from bertrio.config.data import DataParams, HubCorpus, HubTask
from bertrio.config.groups import Challenge, EncoderParams, OptimizerParams, TinyParams
from bertrio.config.loading import build_tasks, load_params, member_params, merged
from bertrio.config.reading import read_yaml
from bertrio.config.root import Params
from bertrio.config.tasks import TaskParams

__all__ = [
    "Challenge", "DataParams", "EncoderParams", "HubCorpus", "HubTask", "OptimizerParams", "Params",
    "TaskParams", "TinyParams", "build_tasks", "load_params", "member_params", "merged", "read_yaml",
]  # fmt: skip
