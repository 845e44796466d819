"""Which params a piece of code reads, written down while it runs."""

import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from bertrio.config import Params, loading


class Reads:
    """From its making on, the dotted names of all values that are read from any `Params`, in `names`.

    Copies count as what they were copied from, and all fields of a group that is dumped. What is read to check
    params as they are loaded does not count: it has no say in results.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self._places: dict[int, str] = {}
        self._held: list[BaseModel] = []  # an id is that of one object only while it lives
        monkeypatch.setattr(BaseModel, "__getattribute__", self._reader(), raising=False)

    def untracked(self, stage: str) -> list[str]:
        """Those of `names` that dvc.yaml does not list as params of `stage`."""
        stages = yaml.safe_load(Path(__file__).resolve().parents[1].joinpath("dvc.yaml").read_text())["stages"]
        tracked = stages[stage]["params"]
        return sorted(name for name in self.names if not any(f"{name}.".startswith(f"{param}.") for param in tracked))

    def _place(self, value: BaseModel, name: str) -> BaseModel:
        self._places[id(value)] = name
        self._held.append(value)
        return value

    def _reader(self):
        def read(model: BaseModel, name: str):
            value = object.__getattribute__(model, name)
            if type(model) is Params and id(model) not in self._places:
                self._place(model, "")
            place = self._places.get(id(model))
            if place is None or _loading():
                return value
            if name == "model_copy":
                return lambda **options: self._place(value(**options), place)
            if name == "model_dump":
                for field in type(model).__pydantic_fields__:
                    part = getattr(model, field)
                    if isinstance(part, BaseModel):
                        part.model_dump  # noqa: B018 - which is noted, field by field
            elif name in (fields := type(model).__pydantic_fields__):
                self._note(value, f"{place}.{fields[name].alias or name}".lstrip("."))
            return value

        return read

    def _note(self, value: object, name: str) -> None:
        if isinstance(value, BaseModel):
            self._place(value, name)
            return
        self.names.add(name)
        if isinstance(value, dict):
            for item in value.values():
                if isinstance(item, BaseModel):
                    self._place(item, name)


def _loading() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == loading.__name__:
            return True
        frame = frame.f_back
    return False
