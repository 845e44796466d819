"""params.yaml as typed, validated objects.

`load_params` is the only way in: it reads the file, coerces what `dvc exp run -S` writes (`2e-05` reaches YAML 1.1
readers as text), and checks names, types, ranges and combinations before any work starts. All that is wrong is
reported in one message.
"""

from __future__ import annotations

import copy
import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bertrio.errors import UserError
from bertrio.tasks import Task, build_target

OVERALL = ("overall_normalized", "overall_mean")
RESERVED = (*OVERALL, "last")  # what finetune.select takes beside the tasks
MEMBER_GROUPS = ("runtime", "tasks", "encoder", "optimizer", "finetune", "schedule")  # what finetune reads
FIXED_IN_TASKS = ("kind", "target", "classes", "range")  # decide what a label is
PREPARED = ("encoder.name", "encoder.revision", "encoder.tiny")  # settled before finetune, the same for all members


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, found true or false")
    return value


Real = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_no_bool)]
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Count = Annotated[Whole, Field(ge=1)]
Share = Annotated[Real, Field(ge=0, le=1)]
Rate = Annotated[Real, Field(ge=0, lt=1)]
Seed = Annotated[Whole, Field(ge=0, lt=2**32)]


class Group(BaseModel):
    """A block of params.yaml: unknown keys are errors, values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class RuntimeParams(Group):
    seed: Seed
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")]
    precision: Literal["auto", "float32", "bf16"]
    threads: Count | None


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


class SplitParams(SplitRule):
    seed: Seed
    tasks: dict[str, SplitRule]


class FilesTask(Group):
    """Where a task's rows are, for `data.source: files`; paths are relative to `data.path` unless absolute."""

    train: str
    dev: str | None = None
    test: str | None = None
    columns: dict[Literal["id", "text", "text_a", "text_b", "label"], str] = {}


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
    path: str | None
    corpora_path: str | None
    max_reject_fraction: Share
    sample: SampleParams
    split: SplitParams
    files: dict[str, FilesTask]
    hub: HubParams


class TaskParams(Group):
    kind: Literal["single", "pair"]
    target: Literal["classes", "ordered", "binary", "score"]
    classes: Annotated[Whole, Field(ge=2)] | None = None
    range: tuple[Real, Real] | None = None
    encoding: Literal["cross"] | None = None
    head: Literal["linear"]
    loss: Literal["cross_entropy", "bce", "mse"]
    batch_size: Count
    dropout: Rate

    @model_validator(mode="after")
    def _parts_fit(self) -> TaskParams:
        if (self.classes is not None) != (self.target in ("classes", "ordered")):
            raise ValueError("classes (how many) goes with target classes or ordered, and with no other")
        if (self.range is not None) != (self.target == "score"):
            raise ValueError("range ([lowest, highest]) goes with target score, and with no other")
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"range: expected [lowest, highest], found {list(self.range)}")
        if (self.encoding is not None) != (self.kind == "pair"):
            raise ValueError("encoding goes with kind pair (cross), and is left out or null for kind single")
        fits = build_target(self.target, self.classes, self.range).losses
        if self.loss not in fits:
            raise ValueError(f"loss {self.loss} does not fit target {self.target}: expected {' or '.join(fits)}")
        return self


class TinyParams(Group):
    vocab_size: Annotated[Whole, Field(ge=200)]
    hidden_size: Count
    layers: Count
    heads: Count
    intermediate_size: Count
    initializer_range: Positive
    dropout: Rate
    lr_factor: Positive

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyParams:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}")
        return self


class EncoderParams(Group):
    name: Annotated[str, Field(min_length=1)]
    revision: str | None
    pooling: Literal["cls", "mean", "pooler"]
    dropout: Rate | None
    attention_dropout: Rate | None
    frozen: bool
    max_length: Annotated[Whole, Field(ge=8)]
    tiny: TinyParams

    @property
    def width(self) -> int | None:
        """The hidden size, where params say it."""
        return self.tiny.hidden_size if self.name == "tiny" else None

    @property
    def lr_factor(self) -> float:
        """What every learning rate is multiplied by: a fresh encoder learns from larger steps than a pretrained one."""
        return self.tiny.lr_factor if self.name == "tiny" else 1.0


class OptimizerParams(Group):
    betas: tuple[Rate, Rate]
    eps: Positive
    weight_decay: NotNegative
    lr_schedule: Literal["linear", "constant"]
    warmup_fraction: Share
    max_grad_norm: Positive | None


class MlmRows(Group):
    imdb: Annotated[Whole, Field(ge=0)]
    multinli: Annotated[Whole, Field(ge=0)]
    sick: Annotated[Whole, Field(ge=0)]


class MlmParams(Group):
    enabled: bool
    rows: MlmRows
    block_size: Annotated[Whole, Field(ge=8)]
    mask_probability: Annotated[Real, Field(gt=0, lt=1)]
    held_out: Annotated[Real, Field(gt=0, lt=1)]
    epochs: Count
    max_steps: Count | None
    batch_size: Count
    lr: Positive


class PrefinetuneParams(Group):
    task: str
    epochs: Annotated[Whole, Field(ge=0)]
    max_steps: Count | None
    lr: Positive


class FinetuneParams(Group):
    epochs: Count
    max_steps: Count | None
    lr: Positive
    select: str
    select_on: Literal["dev", "holdout"]
    holdout_fraction: Annotated[Real, Field(gt=0, lt=1)]
    train_metrics: bool
    eval_batch_size: Count


class ScheduleParams(Group):
    name: Literal["joint"]
    until: str


class EnsembleParams(Group):
    members: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")], dict[str, Any] | None], Field(min_length=1)
    ]
    combine: Literal["vote", "mean"]


class EvaluateParams(Group):
    submission: bool


class Params(Group):
    """All of params.yaml."""

    runtime: RuntimeParams
    data: DataParams
    tasks: Annotated[dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], TaskParams], Field(min_length=1)]
    encoder: EncoderParams
    optimizer: OptimizerParams
    mlm: MlmParams
    prefinetune: PrefinetuneParams
    finetune: FinetuneParams
    schedule: ScheduleParams
    ensemble: EnsembleParams
    evaluate: EvaluateParams

    @model_validator(mode="after")
    def _groups_fit(self) -> Params:
        problems = [problem for problem in self._combination_problems() if problem]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _combination_problems(self) -> list[str | None]:
        known = ", ".join(self.tasks)
        select = (*self.tasks, *RESERVED)
        needs_path = self.data.source == "cs224n" and self.data.path is None
        return [
            _not_in("schedule.until", self.schedule.until, self.tasks, known),
            _not_in("prefinetune.task", self.prefinetune.task, self.tasks, known) if self.prefinetune.epochs else None,
            _not_in("finetune.select", self.finetune.select, select, ", ".join(select)),
            *[_not_in("data.split.tasks", name, self.tasks, known) for name in self.data.split.tasks],
            *[
                f"tasks.{name}: is a word of its own here; call the task otherwise"
                for name in RESERVED
                if name in self.tasks
            ],
            "data.path: found null, expected the folder of the course's files for data.source cs224n"
            if needs_path
            else None,
            *self._source_problems(),
        ]

    def _source_problems(self) -> list[str | None]:
        if self.data.source not in ("files", "hub"):
            return []
        described = self.data.files if self.data.source == "files" else self.data.hub.tasks
        place = "data.files" if self.data.source == "files" else "data.hub.tasks"
        missing = [f"{place}: found no block for task {name}" for name in self.tasks if name not in described]
        if self.data.source == "hub" and self.mlm.enabled:
            wanted = [name for name, rows in self.mlm.rows if rows and name not in self.data.hub.corpora]
            missing += [
                f"data.hub.corpora: found no block for {name}, of which mlm.rows asks for rows" for name in wanted
            ]
        return list(missing)


def _not_in(param: str, value: str, known: Any, names: str) -> str | None:
    return None if value in known else f"{param}: found {value!r}, expected one of {names}"


def load_params(path: str | Path = "params.yaml") -> Params:
    """Reads and checks params.yaml, its ensemble members included.

    Raises:
        UserError: naming every param that is unknown, of a wrong type, out of range or in conflict with another.
    """
    raw = read_yaml(path)
    params = _validate(raw, str(path))
    for name in params.ensemble.members:
        _member(raw, params, name, str(path))
    return params


def load_member(name: str, path: str | Path = "params.yaml") -> Params:
    """The params as ensemble member `name` sees them: the base with the member's own overrides on top.

    Raises:
        UserError: as `load_params`, and if there is no such member.
    """
    raw = read_yaml(path)
    params = _validate(raw, str(path))
    if name not in params.ensemble.members:
        raise UserError(
            f"{path}: ensemble.members has no member {name!r}, expected one of {', '.join(params.ensemble.members)}"
        )
    return _member(raw, params, name, str(path))


def _member(raw: dict[str, Any], params: Params, name: str, path: str) -> Params:
    overrides = params.ensemble.members[name] or {}
    at = f"ensemble.members.{name}"
    for group, block in overrides.items():
        if group not in MEMBER_GROUPS:
            raise UserError(
                f"{path}: {at}.{group}: a member may override {', '.join(MEMBER_GROUPS)}: what finetune reads"
            )
        if not isinstance(block, dict):
            raise UserError(f"{path}: {at}.{group}: found {block!r}, expected a block of params such as {{seed: 2}}")
        for key, value in block.items():
            if group == "tasks" and key not in params.tasks:
                raise UserError(f"{path}: {at}.tasks.{key}: no such task, expected one of {', '.join(params.tasks)}")
            inner = [f"{key}.{name}" for name in FIXED_IN_TASKS if group == "tasks" and name in (value or {})]
            for name in [key] if f"{group}.{key}" in PREPARED else inner:
                raise UserError(
                    f"{path}: {at}.{group}.{name}: can't differ between members; set {group}.{name} for all of them"
                )
    return _validate(merged(raw, overrides), path, at)


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of `base` with `overrides` on top; blocks merge, everything else is replaced."""
    result = copy.deepcopy(base)
    for key, value in overrides.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


class _Loader(yaml.SafeLoader):
    """A safe loader for which a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key))
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Reads a YAML file that holds one mapping.

    Raises:
        UserError: if it is missing, not UTF-8, not YAML, or not a mapping.
    """
    try:
        raw = yaml.load(Path(path).read_text(encoding="utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise UserError(
            f"{path}: can't be read ({error.strerror}); run this from the folder that holds params.yaml"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path}: found {type(raw).__name__}, expected groups of params such as 'runtime:'")
    return raw


def _validate(raw: dict[str, Any], path: str, prefix: str = "") -> Params:
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        lines = [_message(item, raw, prefix) for item in error.errors(include_url=False)]
        raise UserError("\n".join(f"{path}: {line}" for line in lines)) from None


def _message(item: dict[str, Any], raw: dict[str, Any], prefix: str) -> str:
    keys = [str(key) for key in item["loc"] if not str(key).startswith("[")]
    name = ".".join(([prefix] if prefix else []) + keys)
    if item["type"] == "extra_forbidden":
        return f"{name}: unknown param; {_nearest(item['loc'])}"
    text = re.sub(r"^(Value error, |Input )", "", item["msg"])
    if item["type"] == "missing":
        if isinstance(item["loc"][-1], int):
            return f"{name.rpartition('.')[0]}: expected more values, found {item['input']!r}"
        return f"{name}: is missing, and has no default"
    if item["type"] == "value_error":
        return f"{name}: {text}" if name else text
    return f"{name}: {text.replace('should be', 'expected')}, found {item['input']!r}"


def _nearest(loc: tuple[Any, ...]) -> str:
    known = _known_keys(loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {'.'.join([*map(str, loc[:-1]), close[0]])}?"
    return f"known here: {', '.join(known)}"


def _known_keys(loc: tuple[Any, ...]) -> list[str]:
    """The names allowed in the block at `loc`; empty where any name is."""
    kind: Any = Params
    for key in loc:
        kind = _field_type(kind, str(key))
    return list(kind.model_fields) if _is_group(kind) else []


def _field_type(kind: Any, key: str) -> Any:
    """The type of field `key` of a group, or of any item of a `dict[str, X]`."""
    if _is_group(kind):
        return kind.model_fields[key].annotation if key in kind.model_fields else None
    items = [item for item in get_args(kind) if _is_group(item)]
    return items[0] if items else None


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Group)


def build_tasks(params: Params) -> dict[str, Task]:
    """The tasks of params.yaml, in its order."""
    return {
        name: Task(name, task.kind, task.encoding or "cross", build_target(task.target, task.classes, task.range))
        for name, task in params.tasks.items()
    }
