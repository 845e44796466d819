"""What all groups of params share: their base class, and numbers with a range."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


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
