"""Record the params that code reads while it runs."""

import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from bertrio.config import Params, loading


class Reads:
    """Collect in `names` the dotted names of all values read from any `Params`.

    A copy counts as its original, and dumping a group reads all of its fields. Reads by the checks of loading do not
    count, since they have no effect on results.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self._paths: dict[int, str] = {}
        self._alive: list[BaseModel] = []  # ids are unique only among living objects
        monkeypatch.setattr(BaseModel, "__getattribute__", self._reader(), raising=False)

    def untracked(self, stage: str) -> list[str]:
        """Return the `names` that dvc.yaml does not list as params of `stage`."""
        stages = yaml.safe_load(Path(__file__).resolve().parents[1].joinpath("dvc.yaml").read_text())["stages"]
        tracked = stages[stage]["params"]
        return sorted(name for name in self.names if not any(f"{name}.".startswith(f"{param}.") for param in tracked))

    def _track(self, value: BaseModel, name: str) -> BaseModel:
        self._paths[id(value)] = name
        self._alive.append(value)
        return value

    def _reader(self):
        def read(model: BaseModel, name: str):
            value = object.__getattribute__(model, name)
            if type(model) is Params and id(model) not in self._paths:
                self._track(model, "")
            path = self._paths.get(id(model))
            if path is None or _loading():
                return value
            if name == "model_copy":
                return lambda **options: self._track(value(**options), path)
            if name == "model_dump":
                for field in type(model).__pydantic_fields__:
                    part = getattr(model, field)
                    if isinstance(part, BaseModel):
                        part.model_dump  # noqa: B018 - records each field
            elif name in (fields := type(model).__pydantic_fields__):
                self._note(value, f"{path}.{fields[name].alias or name}".lstrip("."))
            return value

        return read

    def _note(self, value: object, name: str) -> None:
        if isinstance(value, BaseModel):
            self._track(value, name)
            return
        self.names.add(name)
        if isinstance(value, dict):
            for item in value.values():
                if isinstance(item, BaseModel):
                    self._track(item, name)


def _loading() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == loading.__name__:
            return True
        frame = frame.f_back
    return False
