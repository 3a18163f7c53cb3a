"""`.kvplan.yaml` read from a tree: every complaint is one line with the file and the line in it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.config.project_file import FILE_NAME, ONE_DOCUMENT
from kvplan.errors import InputError, KvplanError, UnknownNameError
from kvplan.gate.policy import Policy, Required, Waiver, refuse_long_waiver
from kvplan.gate.repo_files import inside
from kvplan.gate.terms import Calibration

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from kvplan.gate.policy_kinds import WrongValueError
    from kvplan.gate.policy_schema import PolicyFile, WaiverEntry
    from kvplan.gate.repo_files import RepoFiles
    from kvplan.gate.yaml_nodes import Node
    from kvplan.load.workload import Workload

    Where = tuple[str | int, ...]


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
        self._check_names(file, root)
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
        from kvplan.gate.yaml_nodes import SecondDocumentError, YamlError, compose

        try:
            root = compose(self._text, only_one=True)
        except SecondDocumentError as error:
            raise InputError(f"{self._name}:{error.line}: {error}", ONE_DOCUMENT) from None
        except YamlError as error:
            raise InputError(
                f"{self._name}:{error.line}: not YAML: {error}", "write lines like `gpu: l4`"
            ) from None
        if root is not None and root.kind != "map":
            raise InputError(f"{self._name}:{root.line}: not a mapping", "write lines like `gpu: l4`")
        if root is not None:
            self._refuse_lost_keys(root)
        return root

    def _refuse_lost_keys(self, root: Node) -> None:
        """A key that another one overwrites, or that is no word, is a rule that nobody applies."""
        flags = root.get("allowed")
        for node in root.walk():
            seen: dict[str, int] = {}
            for key, _ in node.pairs:
                if key.kind != "scalar":
                    raise InputError(
                        f"{self._name}:{key.line}: a key that is no word", "docs/policy.md lists the keys"
                    )
                name = key.text.lstrip("-").replace("-", "_") if node is flags else key.text
                if name in seen:
                    raise InputError(
                        f"{self._name}:{key.line}: {key.text} is there twice, first in line {seen[name]}",
                        "only one of them would count: put them together",
                    )
                seen[name] = key.line

    def _validated(self, root: Node | None) -> PolicyFile:
        from kvplan.gate.policy_kinds import WrongValueError, read_keys
        from kvplan.gate.policy_schema import PolicyFile
        from kvplan.gate.yaml_nodes import YamlError

        try:
            return read_keys(PolicyFile, {} if root is None else root.plain())
        except YamlError as error:
            raise InputError(f"{self._name}:{error.line}: {error}", "docs/policy.md lists the keys") from None
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
        return InputError(
            f"{place}: {key}{joint}{error.complaint}", "docs/policy.md lists the keys and what they take"
        )

    def _check_rules(self, file: PolicyFile, root: Node | None) -> None:
        from kvplan.gate.rules import RULE_IDS

        places: list[tuple[Where, Any]] = [(("rules",), file.rules or {})]
        places += [(("paths", i, "rules"), entry.rules or {}) for i, entry in enumerate(file.paths)]
        asked = [((*where, rule), rule) for where, rules in places for rule in rules]
        asked += [(("waivers", i, "rule"), entry.rule) for i, entry in enumerate(file.waivers)]
        for where, rule in asked:
            if rule not in RULE_IDS:
                raise InputError(
                    f"{self._name}:{_line(root, where)}: no rule {rule}",
                    f"rules are {RULE_IDS[0]} to {RULE_IDS[-1]}",
                )

    def _check_names(self, file: PolicyFile, root: Node | None) -> None:
        """A card or a release that nobody knows would leave every launch unjudged, which passes."""
        from kvplan.config.version import parse_vllm_version

        for where, card in _cards(file):
            try:
                refuse_unknown_card(card)
            except InputError as error:
                place = f"{self._name}:{_line(root, where)}: {'.'.join(map(str, where))}"
                raise InputError(f"{place}: {error.message}", error.hint) from None
        named: list[tuple[Where, str | None]] = [(("vllm_version",), file.vllm_version)]
        named += [(("paths", i, "vllm_version"), entry.vllm_version) for i, entry in enumerate(file.paths)]
        for where, release in named:
            try:
                _ = release is None or parse_vllm_version(release)
            except InputError as error:
                place = f"{self._name}:{_line(root, where)}: {'.'.join(map(str, where))}"
                raise InputError(f"{place}: {error.message}", error.hint) from None

    def _waiver(self, entry: WaiverEntry, line: int) -> Waiver:
        refuse_long_waiver(entry.until, self._today, f"{self._name}:{line}")
        return Waiver(
            (entry.rule,), entry.path, entry.until, entry.reason, entry.owner, entry.model, line=line
        )

    def _workloads(self, file: PolicyFile, root: Node | None) -> dict[str, Workload]:
        found: dict[str, Workload] = {}
        named: list[tuple[Where, str | None]] = [(("workload",), file.workload)]
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
            raise InputError(
                f"{place}: launches: no file {file.launches!r} in the repository",
                "commit the file, or drop the key",
            )
        try:
            lines = [line for line in text.split("\n") if line.strip()]
            return Calibration(path, tuple(Launch.from_dict(json.loads(line)) for line in lines))
        except (ValueError, TypeError, AttributeError, KvplanError):
            raise InputError(
                f"{place}: {path} holds lines that are no kvplan.launch/1 records",
                "`kvplan profiles calibrate --log FILE --store FILE` writes such lines",
            ) from None


def refuse_unknown_card(name: str) -> None:
    """A card that the policy or the command line names is one of the catalogue.

    Raises:
        InputError: there is none of that name, or there are several; the hint names the nearest.
    """
    from kvplan.catalog.gpus import find_gpu

    listed = "`kvplan profiles gpus` lists all"
    try:
        find_gpu(name)
    except UnknownNameError as error:
        near = f"did you mean {', '.join(error.nearest)}? " if error.nearest else ""
        raise InputError(f"no GPU profile {name!r}", near + listed) from None
    except InputError as error:
        raise InputError(error.message, listed) from None


def _cards(file: PolicyFile) -> Iterator[tuple[Where, str]]:
    if file.gpu is not None:
        yield ("gpu",), file.gpu
    for sign, card in (file.gpu_map or {}).items():
        yield ("gpu_map", sign), card
    for i, entry in enumerate(file.paths):
        if entry.gpu is not None:
            yield ("paths", i, "gpu"), entry.gpu


def _known_keys(where: Where) -> list[str]:
    from kvplan.gate import policy_schema

    kinds = {"paths": policy_schema.PathEntry, "waivers": policy_schema.WaiverEntry}
    kind: Any = kinds.get(str(where[0])) if len(where) > 1 else None
    return [one.name for one in dataclasses.fields(kind or policy_schema.PolicyFile)]


def _line(root: Node | None, where: Where) -> int:
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
