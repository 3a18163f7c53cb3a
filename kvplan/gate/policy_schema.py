"""The keys of `.kvplan.yaml` and their types: pydantic models, which are also the published JSON Schema."""

from __future__ import annotations

import datetime as dt  # noqa: TC003  pydantic reads it at run time
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

RuleId = Annotated[str, Field(pattern=r"^KVP\d{3}$")]


def _name(value: Any) -> Any:
    """`gpu: 4090` and `vllm_version: 0.32` are numbers to YAML and names to people."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _severity(value: Any) -> Any:
    """YAML reads `off` and `on` as booleans."""
    return {False: "off", True: "on"}.get(value, value) if isinstance(value, bool) else value


Name = Annotated[str, BeforeValidator(_name, json_schema_input_type=str | int | float)]
Patterns = Annotated[
    list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str]), Field(min_length=1)
]
RuleSetting = Annotated[
    Literal["off", "on", "note", "warning", "error"],
    BeforeValidator(
        _severity, json_schema_input_type=Literal["off", "on", "note", "warning", "error"] | bool
    ),
]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PathKeys(_Keys):
    """What can be said for the whole repository and for a path."""

    gpu: Name | None = Field(None, description="GPU profile where a file names no card")
    model: Name | None = Field(
        None, description="model profile where a file's model is unknown or a path of the container"
    )
    vllm_version: Name | None = Field(None, description="vLLM release where neither image tag nor pin says")
    target_concurrency: int | None = Field(
        None, strict=True, ge=1, description="requests that a launch serves at once"
    )
    workload: str | None = Field(
        None, description="workload preset, or a kvplan.workload/1 file of the repository"
    )
    min_headroom_gib: float | None = Field(
        None, strict=True, ge=0, description="GiB of the card that stay free beyond all that vLLM plans with"
    )
    min_start_probability: float | None = Field(None, strict=True, gt=0, le=1)
    max_capacity_regression_percent: float | None = Field(
        None, strict=True, ge=0, description="how much of its capacity a launch may lose against the base"
    )
    allowed: dict[str, list[Any]] | None = Field(
        None, description="flag -> the values that it may be given; an empty list forbids the flag"
    )
    rules: dict[RuleId, RuleSetting] | None = Field(
        None, description="rule -> off, on (its own severities), note, warning or error"
    )
    assume: dict[str, Name] | None = Field(
        None, description="variable -> the value to read files with where nobody in the repository gives one"
    )
    require_judged: bool | None = Field(
        None, strict=True, description="exit 2 when a launch here cannot be judged"
    )

    @field_validator("allowed")
    @classmethod
    def _flag_names(cls, allowed: dict[str, list[Any]] | None) -> dict[str, list[Any]] | None:
        """Flags may be written as vLLM's options are."""
        if allowed is None:
            return None
        return {name.lstrip("-").replace("-", "_"): values for name, values in allowed.items()}


class PathEntry(PathKeys):
    """Keys for the paths that a pattern matches; later entries win over earlier ones, key by key."""

    match: Patterns
    require_launch: bool = Field(
        default=False, strict=True, description="a finding (KVP028) when no launch is found here"
    )


class WaiverEntry(_Keys):
    """A finding that is accepted until a day."""

    rule: RuleId
    path: str
    model: str | None = None
    until: dt.date = Field(description="the last day, at most 180 days ahead")
    reason: str = Field(min_length=3)
    owner: str | None = None

    @field_validator("until", mode="before")
    @classmethod
    def _a_date(cls, value: Any) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
            raise ValueError("not a date like 2027-03-31")
        return value


class PolicyFile(PathKeys):
    """`.kvplan.yaml`: what a project says once, for every command, and what the gate holds launches to."""

    gpu_memory_gib: float | None = Field(
        None, strict=True, gt=0, description="default of `kvplan estimate`; not used by the gate"
    )
    device: Literal["cuda", "cpu"] | None = Field(
        None, description="default of `kvplan estimate`; not used by the gate"
    )
    launches: str | None = Field(
        None, description="file of measured launches in the repository; calibrates estimates and the gate"
    )
    gpu_map: dict[str, Name] | None = Field(
        None, description="`label=value` of a node selector (`*` allowed), or a product's name -> GPU profile"
    )
    paths: list[PathEntry] = Field(default_factory=list)
    waivers: list[WaiverEntry] = Field(default_factory=list)
