"""Where rows come from and how they are split: the `data` group."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bertrio.params.base import Count, Group, InputPath, NotNegative, Positive, Rate, Seed, Share


class SampleParams(Group):
    seed: Seed
    train_rows: Count
    dev_rows: Count
    test_rows: Count
    label_noise: Rate


class SplitRule(Group):
    strategy: Literal["official", "random", "grouped"]
    fractions: tuple[NotNegative, NotNegative, NotNegative]

    @model_validator(mode="after")
    def _fractions_sum_to_one(self) -> SplitRule:
        if abs(sum(self.fractions) - 1) > 1e-6 or self.fractions[0] == 0:
            raise ValueError("fractions are train, dev, test: expected a train share above 0 and a sum of 1")
        return self


class KeepParams(Group):
    """The share of its rows that each split keeps."""

    train: Annotated[Share, Field(gt=0)]
    dev: Annotated[Share, Field(gt=0)]
    test: Share


class SplitParams(SplitRule):
    seed: Seed
    keep: KeepParams
    tasks: dict[str, SplitRule]


class FilesTask(Group):
    """Where a task's rows are, for `data.source: files`; paths are relative to `data.path` unless absolute."""

    train: InputPath
    dev: InputPath | None = None
    test: InputPath | None = None
    columns: dict[Literal["id", "text", "text_a", "text_b", "label"], str] = Field(default_factory=dict)


class HubTask(Group):
    """A task's data set on the hub, for `data.source: hub`."""

    id: str
    config: str | None = None
    revision: str | None = None
    splits: dict[Literal["train", "dev", "test"], str]
    columns: dict[Literal["id", "text", "text_a", "text_b", "label"], str]
    label_scale: Positive = 1.0


class HubCorpus(Group):
    """An unlabelled corpus on the hub."""

    id: str
    config: str | None = None
    revision: str | None = None
    split: str
    columns: Annotated[list[str], Field(min_length=1)]


class HubParams(Group):
    tasks: dict[str, HubTask]
    corpora: dict[Literal["imdb", "multinli", "sick"], HubCorpus]


class DataParams(Group):
    source: Literal["sample", "cs224n", "files", "hub"]
    path: InputPath | None
    corpora_path: InputPath | None
    max_reject_fraction: Share
    sample: SampleParams
    split: SplitParams
    files: dict[str, FilesTask]
    hub: HubParams
