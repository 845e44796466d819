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

MODULES = {
    "data": ["DataParams", "HubCorpus", "HubTask"],
    "groups": ["Challenge", "EncoderParams", "OptimizerParams", "TinyParams"],
    "loading": ["build_tasks", "load_params", "member_params"],
    "reading": ["merged", "read_yaml"],
    "root": ["Params"],
    "tasks": ["TaskParams"],
}
__all__ = [
    "Challenge", "DataParams", "EncoderParams", "HubCorpus", "HubTask", "OptimizerParams", "Params",
    "TaskParams", "TinyParams", "build_tasks", "load_params", "member_params", "merged", "read_yaml",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import an object when it is used: to read YAML alone, torch need not be loaded."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
