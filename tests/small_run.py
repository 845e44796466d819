"""A small finished run on disk: splits, tokenizer, members with random weights, and predictions."""

import runpy
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import torch

from bertrio.config import load_params, member_params, merged
from bertrio.core.files import write_json
from bertrio.core.runtime import set_up
from bertrio.data.sources.sample import generate
from bertrio.evaluation.predictions import write_predictions
from bertrio.model.config import ModelConfig
from bertrio.model.multitask import build_model, save_model
from bertrio.training.build import load_split
from bertrio.training.ensemble import build_ensemble
from bertrio.training.finetune import predict
from tests.linear_heads import LINEAR_HEADS
from tests.training.conftest import Workspace

SMALL = {
    "runtime": {"device": "cpu", "precision": "float32", "threads": 1},
    "encoder": {"tiny": {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}},
    "analyze": {"worst": 4, "rows": 40},
    **LINEAR_HEADS,
}
ROWS = {"train": 60, "dev": 40, "test": 8}


def run_stages(stages: Iterable[str]) -> None:
    """Run stage scripts in the current folder."""
    for stage in stages:
        main = runpy.run_path(str(Path(__file__).parents[1] / "stages" / f"{stage}.py"))["main"]
        main("base") if stage == "finetune" else main()


class Run(Workspace):
    """A run in the current directory."""

    small, sizes = SMALL, ROWS

    def frame(self, task: str, split: str) -> pd.DataFrame:
        return generate(task, split, ROWS[split], 0, 0.0)

    def train(self, name: str = "base", folder: str | None = None) -> pd.DataFrame:
        """Save a model with random weights as member `name`, or to `folder`, and return its predictions."""
        params = member_params(load_params(), name)
        runtime = set_up(len(name), "cpu", "float32", 1)
        model = build_model(params, "models/encoder", runtime)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape)
        save_model(model, folder or f"models/members/{name}", ModelConfig.from_params(params), "models/tokenizer")
        splits = {split: load_split(params, split, "data/splits", "models/tokenizer") for split in ("dev", "test")}
        table = pd.concat([predict(model, rows, split, 64) for split, rows in splits.items()], ignore_index=True)
        write_predictions(table, f"predictions/members/{name}/predictions.parquet")
        return table

    def two_members(self, rule: str = "mean", **overrides) -> Path:
        """Train and combine `base` and `second`, with overrides by group, and return the folder models."""
        params = self.params(**merged({"ensemble": {"members": {"base": {}, "second": {}}}}, overrides))
        for name in params.ensemble.members:
            self.train(name)
        self.combine(rule)
        return self.root / "models"

    def combine(self, rule: str = "vote"):
        """Combine the members as the stage `ensemble` does, and write the metrics that the card reads."""
        base = load_params()
        params = base.model_copy(update={"ensemble": base.ensemble.model_copy(update={"combine": rule})})
        members = {name: member_params(params, name) for name in params.ensemble.members}
        build_ensemble(
            params, members, "data/splits", "models/tokenizer", "models/members", "predictions/members",
            "predictions/ensemble.parquet", "models/ensemble",
        )  # fmt: skip
        write_json("metrics/data.json", {"tasks": {}})
        write_json("metrics/evaluation.json", {"dev": {}})
        return params
