"""`.kvplan.yaml` of a repository as the gate reads it: terms for each path, waivers, what must be there."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.project_file import FILE_NAME
from kvplan.errors import InputError, KvplanError
from kvplan.gate.globs import path_matches
from kvplan.gate.repo_files import inside
from kvplan.gate.terms import Calibration, HowToRead, Terms
from kvplan.units import bytes_from_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.gate.policy_kinds import WrongValueError
    from kvplan.gate.policy_schema import PathKeys, PolicyFile, WaiverEntry
    from kvplan.gate.repo_files import RepoFiles
    from kvplan.gate.result import Severity
    from kvplan.gate.yaml_nodes import Node
    from kvplan.load.workload import Workload

LONGEST_WAIVER_DAYS: Final = 180


@dataclass(frozen=True, slots=True)
class Waiver:
    """A finding that is accepted until a day, and where that is said."""

    rules: tuple[str, ...]
    path: str
    """Pattern."""
    until: dt.date
    reason: str
    owner: str | None = None
    model: str | None = None
    said_in: str = FILE_NAME
    line: int = 1
    launch_line: int | None = None
    """Of a comment: the line below it, which the waived launch or flag stands on."""


@dataclass(frozen=True, slots=True)
class Required:
    """A path that must hold a launch, and the line that says so."""

    patterns: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Policy:
    """What the gate holds launches to."""

    file: PolicyFile | None = None
    waivers: tuple[Waiver, ...] = ()
    calibration: Calibration | None = None
    required: tuple[Required, ...] = ()
    """Paths that must hold a launch."""
    _workloads: Mapping[str, Workload] = field(default_factory=dict)

    def terms(self, path: str) -> Terms:
        """The terms of a path: the file's own keys, then each matching entry of `paths`, key by key."""
        if self.file is None:
            return Terms()
        said = self._said(path)
        workload = said.get("workload")
        headroom = said.get("min_headroom_gib")
        return Terms(
            gpu=said.get("gpu"),
            gpu_map=tuple((self.file.gpu_map or {}).items()),
            model=said.get("model"),
            vllm_version=said.get("vllm_version"),
            target_concurrency=said.get("target_concurrency"),
            workload=self._workloads.get(workload) if workload else None,
            workload_name=workload,
            min_headroom_bytes=None if headroom is None else bytes_from_gib(headroom),
            min_start_probability=said.get("min_start_probability"),
            max_capacity_regression_percent=said.get("max_capacity_regression_percent"),
            allowed={name: tuple(values) for name, values in (said.get("allowed") or {}).items()},
            severities=_severities(said.get("rules") or {}),
            named_rules=frozenset(
                rule for rule, setting in (said.get("rules") or {}).items() if setting != "off"
            ),
            require_judged=bool(said.get("require_judged")),
            calibration=self.calibration,
        )

    def how_to_read(self, vllm_version: str | None = None) -> HowToRead:
        """What the readers must know beforehand.

        Args:
            vllm_version: read every file as this release would, whatever it pins.
        """
        if self.file is None:
            return HowToRead(vllm_version=vllm_version)
        return HowToRead(
            assume=lambda path: self._said(path).get("assume") or {},
            unpinned_version=lambda path: self._said(path).get("vllm_version"),
            vllm_version=vllm_version,
        )

    def _said(self, path: str) -> dict[str, Any]:
        assert self.file is not None  # noqa: S101  both callers looked
        said = _given(self.file)
        for entry in self.file.paths:
            if any(path_matches(pattern, path) for pattern in entry.match):
                for key, value in _given(entry).items():
                    both = key in {"rules", "assume", "allowed"} and isinstance(said.get(key), dict)
                    said[key] = {**said[key], **value} if both else value
        return said


NO_POLICY = Policy()


def _given(keys: PathKeys) -> dict[str, Any]:
    return {name: value for name in _PATH_KEYS if (value := getattr(keys, name)) is not None}


_PATH_KEYS: Final = (
    "gpu",
    "model",
    "vllm_version",
    "target_concurrency",
    "workload",
    "min_headroom_gib",
    "min_start_probability",
    "max_capacity_regression_percent",
    "allowed",
    "rules",
    "assume",
    "require_judged",
)


def _severities(rules: Mapping[str, str]) -> dict[str, Severity | None]:
    found: dict[str, Severity | None] = {}
    for rule, setting in rules.items():
        match setting:
            case "off":
                found[rule] = None
            case "note" | "warning" | "error":
                found[rule] = setting
    return found


def load_policy(files: RepoFiles, *, today: dt.date, where: str = "") -> Policy | None:
    """The policy that the files hold at their root; None without one.

    Args:
        files: the working tree, or a commit.
        today: what waivers are measured from.
        where: said in front of the file's name in messages (the commit).

    Raises:
        InputError: not YAML, an unknown key (with the nearest), or a wrong value; with file and line.
    """
    text = files.read(FILE_NAME)
    if text is None:
        if files.occupied(FILE_NAME):
            raise InputError(
                f"{where}{FILE_NAME} is there but is no regular file of this repository, or is too large",
                "a policy that cannot be read must not pass for none",
            )
        return None
    return _Loader(text, files, today, f"{where}{FILE_NAME}").load()


class _Loader:
    def __init__(self, text: str, files: RepoFiles, today: dt.date, name: str) -> None:
        self._text = text
        self._files = files
        self._today = today
        self._name = name

    def load(self) -> Policy:
        root = self._compose()
        file = self._validated(root)
        self._check_rules(file, root)
        return Policy(
            file,
            waivers=tuple(
                self._waiver(entry, _line(root, ("waivers", i))) for i, entry in enumerate(file.waivers)
            ),
            calibration=self._calibration(file, root),
            required=tuple(
                Required(tuple(entry.match), _line(root, ("paths", i)))
                for i, entry in enumerate(file.paths)
                if entry.require_launch
            ),
            _workloads=self._workloads(file, root),
        )

    def _compose(self) -> Node | None:
        from kvplan.gate.yaml_nodes import YamlError, compose

        try:
            root = compose(self._text)
        except YamlError as error:
            raise InputError(f"{self._name}:{error.line}: not YAML: {error}") from None
        if root is not None and root.kind != "map":
            raise InputError(f"{self._name}:{root.line}: not a mapping", "write lines like `gpu: l4`")
        return root

    def _validated(self, root: Node | None) -> PolicyFile:
        from kvplan.gate.policy_kinds import WrongValueError, read_keys
        from kvplan.gate.policy_schema import PolicyFile
        from kvplan.gate.yaml_nodes import YamlError

        try:
            return read_keys(PolicyFile, {} if root is None else root.plain())
        except YamlError as error:
            raise InputError(f"{self._name}:{error.line}: {error}") from None
        except WrongValueError as error:
            raise self._explained(error, root) from None

    def _explained(self, error: WrongValueError, root: Node | None) -> InputError:
        where = error.path
        place = f"{self._name}:{_line(root, where)}"
        if error.unknown_key:
            from kvplan.catalog.names import nearest

            known = _known_keys(where)
            near = nearest(str(where[-1]), known)
            return InputError(
                f"{place}: {error.complaint}",
                f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}",
            )
        key = ".".join(str(part) for part in where)
        joint = " " if error.complaint.startswith("lacks") else ": "
        return InputError(f"{place}: {key}{joint}{error.complaint}")

    def _check_rules(self, file: PolicyFile, root: Node | None) -> None:
        from kvplan.gate.rules import RULE_IDS

        places: list[tuple[tuple[str | int, ...], Any]] = [(("rules",), file.rules or {})]
        places += [(("paths", i, "rules"), entry.rules or {}) for i, entry in enumerate(file.paths)]
        asked = [((*where, rule), rule) for where, rules in places for rule in rules]
        asked += [(("waivers", i, "rule"), entry.rule) for i, entry in enumerate(file.waivers)]
        for where, rule in asked:
            if rule not in RULE_IDS:
                raise InputError(
                    f"{self._name}:{_line(root, where)}: no rule {rule}",
                    f"rules are {RULE_IDS[0]} to {RULE_IDS[-1]}",
                )

    def _waiver(self, entry: WaiverEntry, line: int) -> Waiver:
        refuse_long_waiver(entry.until, self._today, f"{self._name}:{line}")
        return Waiver(
            (entry.rule,), entry.path, entry.until, entry.reason, entry.owner, entry.model, line=line
        )

    def _workloads(self, file: PolicyFile, root: Node | None) -> dict[str, Workload]:
        found: dict[str, Workload] = {}
        named: list[tuple[tuple[str | int, ...], str | None]] = [(("workload",), file.workload)]
        named += [(("paths", i, "workload"), entry.workload) for i, entry in enumerate(file.paths)]
        for where, name in named:
            if name is not None and name not in found:
                found[name] = self._workload(name, _line(root, where))
        return found

    def _workload(self, name: str, line: int) -> Workload:
        """A file of the same tree (so that a pull request cannot lighten it), else a preset."""
        from kvplan.load.workload_file import parse_workload, preset_paths, read_workload

        path = inside("", name)
        text = self._files.read(path) if path is not None else None
        if path is not None and text is not None:
            return parse_workload(text, Path(path))
        presets = preset_paths()
        if name in presets:
            return read_workload(presets[name])
        raise InputError(
            f"{self._name}:{line}: workload: no file {name!r} in the repository, and no preset of that name",
            f"presets: {', '.join(presets)}",
        )

    def _calibration(self, file: PolicyFile, root: Node | None) -> Calibration | None:
        if file.launches is None:
            return None
        from kvplan.launch import Launch

        path = inside("", file.launches)
        text = self._files.read(path) if path is not None else None
        place = f"{self._name}:{_line(root, ('launches',))}"
        if path is None or text is None:
            raise InputError(f"{place}: launches: no file {file.launches!r} in the repository")
        try:
            lines = [line for line in text.split("\n") if line.strip()]
            return Calibration(path, tuple(Launch.from_dict(json.loads(line)) for line in lines))
        except (ValueError, TypeError, AttributeError, KvplanError):
            raise InputError(f"{place}: {path} holds lines that are no kvplan.launch/1 records") from None


def refuse_long_waiver(until: dt.date, today: dt.date, place: str) -> None:
    """A waiver has an end that can be seen from here.

    Raises:
        InputError: it lies too far ahead.
    """
    latest = today + dt.timedelta(days=LONGEST_WAIVER_DAYS)
    if until > latest:
        raise InputError(
            f"{place}: a waiver until {until} is more than {LONGEST_WAIVER_DAYS} days ahead",
            f"until {latest} at the latest; renew it then if it must be",
        )


def _known_keys(where: tuple[str | int, ...]) -> list[str]:
    from kvplan.gate import policy_schema

    kinds = {"paths": policy_schema.PathEntry, "waivers": policy_schema.WaiverEntry}
    kind: Any = kinds.get(str(where[0])) if len(where) > 1 else None
    return [one.name for one in dataclasses.fields(kind or policy_schema.PolicyFile)]


def _line(root: Node | None, where: tuple[str | int, ...]) -> int:
    """Line of a key path, as far as it exists."""
    node, line = root, root.line if root is not None else 1
    for part in where:
        if node is None:
            break
        if isinstance(part, int):
            node = node.items[part] if node.kind == "list" and part < len(node.items) else None
            line = node.line if node is not None else line
        else:
            if node.kind == "map" and any(key.text == part for key, _ in node.pairs):
                line = node.key_line(part)
            node = node.get(part)
    return line


def json_schema() -> str:
    """The JSON Schema of `.kvplan.yaml`."""
    from kvplan.gate.policy_kinds import schema_of
    from kvplan.gate.policy_schema import PolicyFile

    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": FILE_NAME}
    return json.dumps({**head, **schema_of(PolicyFile)}, indent=2)
