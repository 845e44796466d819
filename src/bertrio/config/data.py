"""Where rows come from and how they are split: the `data` group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from bertrio.core.options import Count, Group, InputPath, NotNegative, Positive, Seed, Share

Columns = dict[Literal["id", "text", "text_a", "text_b", "label"], str]  # of a file, by what the layout calls them


class SampleParams(Group):
    seed: Seed
    train_rows: Count
    dev_rows: Count
    test_rows: Count


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


class ExtraRows(Group):
    """A file with more rows to train a task on; its path starts at `data.path`, or the repository if that is null."""

    train: InputPath
    columns: Columns = Field(default_factory=dict)


class FilesTask(ExtraRows):
    """Where a task's rows are, for `data.source: files`; paths are relative to `data.path` unless absolute."""

    dev: InputPath | None = None
    test: InputPath | None = None


class HubTask(Group):
    """A task's data set on the hub, for `data.source: hub`."""

    id: str
    config: str | None = None
    revision: str | None = None
    splits: dict[Literal["train", "dev", "test"], str]
    columns: Columns
    label_scale: Positive = 1.0


class TaskData(Group):
    """Where one task's rows are, said in its own block: files or a data set on the hub, whatever `data.source` is.

    Paths start at the repository. `split` shares out the labelled rows, as `data.split` does for all tasks.
    """

    train: InputPath | None = None
    dev: InputPath | None = None
    test: InputPath | None = None
    columns: Columns = Field(default_factory=dict)
    hub: HubTask | None = None
    split: SplitRule | None = None

    @model_validator(mode="after")
    def _one_place(self) -> TaskData:
        if (self.train is None) == (self.hub is None) or (self.hub and (self.dev or self.test or self.columns)):
            raise ValueError("expected either train (a file; with it dev, test and columns) or hub (a data set)")
        return self

    @property
    def source(self) -> str:
        """`files` or `hub`."""
        return "files" if self.hub is None else "hub"

    @property
    def files(self) -> dict[str, str]:
        """The files by split; none for a data set on the hub."""
        named = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: path for split, path in named.items() if path is not None}


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
    extra_train: dict[str, ExtraRows]
    hub: HubParams

    @property
    def base(self) -> Path:
        """Where relative paths of `files` and `extra_train` start."""
        return Path(self.path or ".").expanduser()
