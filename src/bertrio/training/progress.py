"""What a run tells while it trains to whoever watches it from outside, such as `bertrio search`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from bertrio.core.console import say

VARIABLE = "BERTRIO_PROGRESS"  # of the environment: the file to write to
STAGE = "DVC_STAGE"  # of the environment: the stage, as in finetune@base, where DVC runs it


def report_epoch(line: Mapping[str, float], last: bool) -> None:
    """Appends a line of JSON to the file that `BERTRIO_PROGRESS` names; without that, nothing.

    The file has no say in the run. If it can't be written, that is said, and training goes on.

    Args:
        line: the epoch's line of the history, with its scores.
        last: whether training ends with this epoch.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": os.environ.get(STAGE, ""), **line, "last": last}) + "\n")
    except OSError as error:
        say(f"{VARIABLE}={path}: can't be written ({error.strerror or error}); nobody is told of epoch {line['epoch']}")
