"""params.yaml as typed, validated objects.

`load_params` is the entry point: it reads the file, and checks names, types, ranges and combinations before any work
starts. One message reports all wrong values and names or, if there are none, all that conflict.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertrio.config.data import DataParams, HubCorpus, HubTask
    from bertrio.config.groups import Challenge, EncoderParams, OptimizerParams, TinyParams
    from bertrio.config.loading import build_tasks, load_params, member_params
    from bertrio.config.reading import merged, read_yaml
    from bertrio.config.root import Params
    from bertrio.config.tasks import TaskParams

__all__ = [
    "Challenge", "DataParams", "EncoderParams", "HubCorpus", "HubTask", "OptimizerParams", "Params",
    "TaskParams", "TinyParams", "build_tasks", "load_params", "member_params", "merged", "read_yaml",
]  # fmt: skip

MODULES = ("reading", "data", "groups", "tasks", "root", "loading")  # all but the first two load torch


if not TYPE_CHECKING:  # else mypy takes any misspelled name for Any

    def __getattr__(name: str) -> Any:
        """Import a name of `__all__` when it is used, so that reading YAML alone does not load torch."""
        if name in __all__:
            for module in MODULES:
                found = import_module(f"{__name__}.{module}")
                if hasattr(found, name):
                    return getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
