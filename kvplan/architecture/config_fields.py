"""Reading config.json: every missing or malformed field is refused by its name, never filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.errors import UnsupportedModelError
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping


class ConfigFields(FrozenRecord):
    """One level of config.json (the top, or its text_config) with the key path for messages."""

    values: Mapping[str, Any]
    architecture: str
    path: str = ""

    def get(self, *names: str) -> Any:
        """The first of the named fields that is there and not null, else None."""
        return next((self.values[n] for n in names if self.values.get(n) is not None), None)

    def integer(self, *names: str, default: int | None = None) -> int:
        """A whole number under the first of the names that is given.

        `default` is for fields that the Hugging Face config class itself fills in and that public
        checkpoints leave out.

        Raises:
            UnsupportedModelError: not there and no default, or not a whole number.
        """
        value = self.get(*names)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise self._bad(names, value)
        return int(value)

    def optional_integer(self, *names: str) -> int | None:
        """A whole number, or None when the field is absent or null."""
        return None if self.get(*names) is None else self.integer(*names)

    def sequence(self, *names: str) -> tuple[Any, ...]:
        """A list.

        Raises:
            UnsupportedModelError: not there, or not a list.
        """
        value = self.get(*names)
        if not isinstance(value, list | tuple):
            raise self._bad(names, value)
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object.

        Raises:
            UnsupportedModelError: not there, or not an object.
        """
        value = self.get(name)
        if not isinstance(value, dict):
            raise self._bad((name,), value)
        return value

    def nested(self, name: str) -> ConfigFields:
        """The object under `name`, as a level of its own."""
        return ConfigFields(self.mapping(name), self.architecture, f"{self.path}{name}.")

    def _bad(self, names: tuple[str, ...], value: object) -> UnsupportedModelError:
        given = [name for name in names if self.values.get(name) is not None]
        keys = " or ".join(f"`{self.path}{name}`" for name in given or names)
        if value is None:
            return UnsupportedModelError(
                f"config.json of {self.architecture} has no {keys}",
                "add the field with the value that the model's own configuration class uses",
            )
        return UnsupportedModelError(
            f"config.json of {self.architecture}: {keys} is {value!r}, which no rule covers",
            "put there what the model's own configuration class takes",
        )


def text_fields(config: Mapping[str, Any], architecture: str) -> ConfigFields:
    """The fields of the language model: `text_config` where there is one, else the top level.

    Source: vLLM 0.32.0 transformers_utils/config.py::get_hf_text_config.
    """
    top = ConfigFields(config, architecture)
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(name), dict):
            return top.nested(name)
    return top
