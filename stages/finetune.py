"""Fine-tune one member of the ensemble on all tasks: python stages/finetune.py --member base

Runs in runtime.processes processes, or in as many as torchrun or accelerate launch start.
"""

import argparse
import os
import sys
from dataclasses import astuple
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # DVC copies (--temp, --queue) run their own code

from bertrio.core.errors import need_environment

need_environment()

from bertrio.config import load_params, member_params
from bertrio.core.distributed import init_distributed, is_main_process
from bertrio.core.runtime import set_up
from bertrio.core.stage import run_stage
from bertrio.model.config import encoder_width
from bertrio.training.finetune import Inputs, finetune


def main(member: str, root: str = "") -> dict:
    params = member_params(load_params(f"{root}params.yaml"), member)
    processes = init_distributed(params.runtime.processes, params.runtime.device)
    inputs = Inputs(*(f"{root}{folder}" for folder in astuple(Inputs())))
    width = encoder_width(f"{inputs.prefinetuned}/encoder")
    runtime = set_up(**params.runtime.model_dump(), process_group=processes, width=width)
    return finetune(
        params,
        runtime,
        inputs,
        model_folder=f"{root}models/members/{member}",
        predictions=f"{root}predictions/members/{member}",
        history=f"{root}plots/history/{member}.csv",
        conflicts=f"{root}plots/conflicts/{member}.csv",
        steps=f"{root}plots/steps/{member}.csv",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    stage = os.environ.get("DVC_STAGE", "").rpartition("@")[2]  # the member, if DVC runs this
    parser.add_argument("--member", default=stage, required=not stage, help="a name in ensemble.members of params.yaml")
    name = parser.parse_args().member
    run_stage(f"finetune-{name}", lambda: main(name), timing=is_main_process())
