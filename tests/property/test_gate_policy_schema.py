"""The published JSON Schema of `.kvplan.yaml` and the gate's own reading of it say the same of any file."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.gate.load_policy import json_schema
from kvplan.gate.policy_kinds import WrongValueError, read_keys
from kvplan.gate.policy_schema import PathEntry, PathKeys, PolicyFile, WaiverEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

VALIDATOR: Final = jsonschema.Draft202012Validator(
    json.loads(json_schema()), format_checker=jsonschema.FormatChecker()
)

# Values that some key takes, and their neighbours that none does. A float that is a whole number is left out:
# JSON knows no difference, YAML's readers do.
SCALARS: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        0.5,
        1.5,
        -0.5,
        "",
        "ab",
        "l4",
        "off",
        "warning",
        "of",
        "cuda",
        "KVP001",
    ),
    *("KV1", "2027-03-31", "2027-02-30", "soon", "deploy/**", "a reason"),
)
scalars = st.sampled_from(SCALARS)
lists = st.lists(scalars, max_size=2)
maps = st.dictionaries(
    st.sampled_from(["KVP001", "KVP002", "KV1", "--dtype", "MODEL"]), scalars | lists, max_size=2
)


def _records(keys: Sequence[str], inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from([*keys, *keys, "gpuu"])
    return st.dictionaries(names, scalars | lists | maps | inner, max_size=3)


def _keys(*models: type) -> list[str]:
    return [one.name for model in models for one in dataclasses.fields(model)]


PATHS = st.lists(_records([*_keys(PathEntry), "match", "match", "match"], st.just(["a", "b"])), max_size=2)
WAIVER: Final = {"rule": "KVP001", "path": "a", "until": "2027-03-31", "reason": "why not"}
WAIVERS = st.lists(
    _records(_keys(WaiverEntry), scalars).map(lambda some: {**WAIVER, **some})
    | _records(list(WAIVER), scalars),
    max_size=2,
)
FILES = _records([*_keys(PathKeys), *_keys(PolicyFile)], PATHS | WAIVERS) | st.fixed_dictionaries(
    {}, optional={"paths": PATHS, "waivers": WAIVERS, "gpu": scalars}
)


def complaint(record: dict[str, Any]) -> WrongValueError | None:
    """What the gate has against the file; None when it takes it."""
    try:
        read_keys(PolicyFile, record)
    except WrongValueError as error:
        return error
    return None


@settings(max_examples=1500, deadline=None)
@given(FILES)
def test_the_schema_and_the_gate_agree(record: dict[str, Any]) -> None:
    assert (complaint(record) is None) == VALIDATOR.is_valid(record)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(_keys(PolicyFile)), scalars | lists | maps)
def test_a_complaint_names_the_key(name: str, value: Any) -> None:
    error = complaint({name: value})
    assert error is None or (error.path[0] == name and error.complaint)


def test_a_taken_file_keeps_what_it_says() -> None:
    file = read_keys(
        PolicyFile,
        {
            "gpu": 4090,
            "min_headroom_gib": 1,
            "allowed": {"--kv-cache-dtype": ["auto"]},
            "rules": {"KVP001": False, "KVP002": True},
            "paths": [{"match": "deploy/**", "require_launch": True}],
            "waivers": [WAIVER],
        },
    )
    assert (file.gpu, file.min_headroom_gib, file.allowed) == ("4090", 1.0, {"kv_cache_dtype": ("auto",)})
    assert file.rules == {"KVP001": "off", "KVP002": "on"}
    assert file.paths == (PathEntry(match=("deploy/**",), require_launch=True),)
    assert file.waivers[0].until.isoformat() == "2027-03-31"
