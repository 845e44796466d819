"""The `data` group: sources of rows, and splits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from bertrio.core.options import Count, FileName, Group, InputPath, NotNegative, Real, Seed, Share

Columns = dict[Literal["id", "text", "text_a", "text_b", "label"], str]  # columns of a file by our names
PAPERS = ("imdb", "multinli", "sick")  # corpora that every source has


class SampleParams(Group):
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
    """Fraction of rows that each split keeps."""

    train: Annotated[Real, Field(gt=0, le=1)]
    dev: Annotated[Real, Field(gt=0, le=1)]
    test: Share


class SplitParams(SplitRule):
    seed: Seed
    keep: KeepParams
    tasks: dict[str, SplitRule]


class DrawnRows(Group):
    """Rows of which each pass over a task takes some, drawn anew; with neither option, it takes all of them.

    Attributes:
        share: their share of the pass, as far as there are so many.
        per_epoch: most rows in a pass.
    """

    share: Annotated[Real, Field(gt=0, lt=1)] | None = None
    per_epoch: Count | None = None
    columns: Columns = Field(default_factory=dict)


class ExtraRows(DrawnRows):
    """More training rows of a task: of a file, and copies of all rows with words for men and women swapped.

    Attributes:
        train: the file; its path is relative to `data.path`, or to the repository if that is null.
        gender_swapped: whether each row with a gendered word also trains with its words swapped, under the same label
            (Lu et al. 2020, "Gender Bias in Neural Natural Language Processing", counterfactual data augmentation).
    """

    train: InputPath | None = None
    gender_swapped: bool = False

    @model_validator(mode="after")
    def _has_rows(self) -> ExtraRows:
        if self.train is None and not self.gender_swapped:
            raise ValueError("expected train (a file), gender_swapped: true, or both")
        return self


class UnlabelledRows(DrawnRows):
    """File with rows of a task without labels, for distillation; the path is relative as in `ExtraRows`."""

    task: str
    path: InputPath


class SplitFiles(Group):
    """Files of a task, and the names of their columns."""

    train: InputPath | None = None
    dev: InputPath | None = None
    test: InputPath | None = None
    columns: Columns = Field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The files by split."""
        paths = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: path for split, path in paths.items() if path is not None}


class FilesTask(SplitFiles):
    """Files of a task for `data.source: files`; paths are relative to `data.path` unless absolute."""

    train: InputPath


class HubSource(Group):
    """Data set on the hub."""

    id: str
    config: str | None = None
    revision: str | None = None


class HubTask(HubSource):
    """Data set of a task on the hub, for `data.source: hub`."""

    splits: dict[Literal["train", "dev", "test"], str]
    columns: Columns


class TaskData(SplitFiles):
    """Source of one task, set in its own block: files or a data set on the hub, independent of `data.source`.

    Paths are relative to the repository. `split` overrides `data.split` for this task.
    """

    hub: HubTask | None = None
    split: SplitRule | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TaskData:
        if (self.train is None) == (self.hub is None) or (self.hub and (self.dev or self.test or self.columns)):
            raise ValueError("expected either train (a file; with it dev, test and columns) or hub (a data set)")
        return self

    @property
    def source(self) -> str:
        """`files` or `hub`."""
        return "files" if self.hub is None else "hub"


class HubCorpus(HubSource):
    """Unlabelled corpus on the hub."""

    split: str
    columns: Annotated[list[str], Field(min_length=1)]


class HubParams(Group):
    tasks: dict[str, HubTask]
    corpora: dict[FileName, HubCorpus]


class DataParams(Group):
    source: Literal["sample", "cs224n", "files", "hub"]
    path: InputPath | None
    corpora_path: InputPath | None
    max_reject_fraction: Share
    sample: SampleParams
    split: SplitParams
    files: dict[str, FilesTask]
    extra_train: dict[str, ExtraRows]
    unlabelled: dict[FileName, UnlabelledRows]
    hub: HubParams

    def corpus_source(self, name: str) -> str:
        """Return the source of a corpus: of the papers' ones that of the rows, else `hub` with a block, or `files`."""
        if name in PAPERS:
            return self.source
        return "hub" if name in self.hub.corpora else "files"

    @property
    def base(self) -> Path:
        """Folder that paths of `files`, `extra_train` and `unlabelled` are relative to."""
        return Path(self.path or ".").expanduser()

    def drawn(self, task: str) -> dict[str, DrawnRows]:
        """Return the blocks of `extra_train` and `unlabelled` for a task, by the source of their rows."""
        extra = {"extra_train": self.extra_train[task]} if task in self.extra_train else {}
        return {**extra, **{f"unlabelled-{name}": rows for name, rows in self.unlabelled.items() if rows.task == task}}
