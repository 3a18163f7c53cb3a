"""How well the gate reads files of public repositories: found launches, right flags, inventions, silence.

    python tests/bench/gate_public_files.py tests/data/public_configs/list-1.yaml FOLDER [--faults]

FOLDER holds the files as OWNER__REPOSITORY/PATH (the repositories at the commits that the list names);
they are other people's and not in this repository. Each is read alone, in a folder of its own, by
`kvplan check --list`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from kvplan.gate.find import OWN_FAULT

SLACK_LINES = 2
Record = dict[str, Any]


def main() -> None:
    """Score a list and print a table by format, and with --faults every difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("list", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", action="store_true", help="print every difference")
    options = parser.parse_args()
    totals: dict[str, Counter[str]] = {}
    for record in yaml.safe_load(options.list.read_text(encoding="utf-8")):
        source = options.folder / (record.get("folder") or record["repo"].replace("/", "__")) / record["path"]
        if not source.is_file():
            print(f"absent: {source}", file=sys.stderr)
            continue
        counts, faults = score(record, listed(source, record["path"]))
        totals.setdefault(record["format"], Counter()).update(counts)
        if options.faults and faults:
            print(f"{record['repo']}/{record['path']}")
            for fault in faults:
                print(f"    {fault}")
    print_table(totals)


def listed(source: Path, path: str) -> Record | None:
    """What the gate reads in one file; None where it crashed.

    Args:
        source: The file.
        path: Its path in its repository, which readers look at.
    """
    with tempfile.TemporaryDirectory() as root:
        target = Path(root) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        command = [sys.executable, "-m", "kvplan", "check", "--list", "--format", "json", path]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode not in (0, 2) or "Traceback" in done.stderr:
        return None
    try:
        document: Record = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"launches": [], "not_read": [{"reason": done.stdout + done.stderr}]}
    if any(OWN_FAULT in item["reason"] for item in document["not_read"]):
        return None
    return document


def score(record: Record, document: Record | None) -> tuple[Counter[str], list[str]]:
    """Counts for one file, and what differs in words."""
    counts: Counter[str] = Counter(files=1)
    if document is None:
        counts["crashes"] += 1
        counts["launches"] += sum(not launch.get("optional") for launch in record["launches"])
        return counts, ["CRASH"]
    faults: list[str] = []
    spare = list(document["launches"])
    for wanted in sorted(record["launches"], key=lambda launch: launch.get("optional", False)):
        seen = closest(wanted, spare)
        if seen is not None:
            spare.remove(seen)
        if wanted.get("optional") and seen is None:
            continue
        counts["launches"] += 1
        if seen is None:
            said = bool(document["not_read"])
            counts["passed_over"] += not said
            faults.append(
                f"NOT FOUND {'(said)' if said else '(silent)'}: line {wanted['line']} {wanted['model']}"
            )
            continue
        counts["found"] += 1
        compare(wanted, seen, counts, faults)
    counts["invented"] += len(spare)
    faults += [f"INVENTED: line {seen['line']} {seen['model']} {seen['flags']}" for seen in spare]
    return counts, faults


def closest(wanted: Record, spare: list[Record]) -> Record | None:
    """The launch that was read at the wanted place, else one of the same model."""
    first, last = wanted.get("lines", [wanted["line"], wanted["line"]])
    here = [seen for seen in spare if first - SLACK_LINES <= seen["line"] <= last + SLACK_LINES]
    same = [seen for seen in here or spare if seen["model"] == wanted["model"]]
    return next(iter(same or here), None)


def compare(wanted: Record, seen: Record, counts: Counter[str], faults: list[str]) -> None:
    """Count what of a launch that was found is right."""
    where = f"line {wanted['line']}"
    if seen["model"] != wanted["model"] and seen["model"] not in wanted.get("model_or", ()):
        counts["model_wrong"] += 1
        faults.append(f"{where}: model {seen['model']!r}, not {wanted['model']!r}")
    for name in ("gpu", "num_gpus"):
        if name in wanted:
            counts[name] += 1
            counts[f"{name}_right"] += wanted[name] == seen[name]
            if wanted[name] != seen[name]:
                faults.append(f"{where}: {name} {seen[name]!r}, not {wanted[name]!r}")
    for name in wanted.get("unresolved", ()):
        counts["unknowns"] += 1
        counts["unknowns_named"] += any(name in other for other in seen["unresolved"])
        if not any(name in other for other in seen["unresolved"]):
            faults.append(f"{where}: {name} is not named as unknown, but {seen['unresolved']}")
    compare_flags(wanted, seen, counts, faults)


def compare_flags(wanted: Record, seen: Record, counts: Counter[str], faults: list[str]) -> None:
    """Count the flags: right, wrong, missing (in silence or not) and invented."""
    where = f"line {wanted['line']}"
    found = seen["flags"]
    refused = {*seen.get("unknown_flags", ()), *seen.get("invalid", ()), *seen.get("ignored", ())}
    expected = {**wanted["flags"], **wanted.get("refused", {}), **wanted.get("maybe", {})}
    for name, value in expected.items():
        counts["flags"] += 1
        absent_is_said = (name in wanted.get("refused", {}) and name in refused) or (
            name in wanted.get("maybe", {}) and (seen["unresolved"] or seen.get("ignored"))
        )
        if name in found:
            right = found[name] == value or name == "api_key"
            counts["flags_right" if right else "wrong"] += 1
            if not right:
                faults.append(f"{where}: {name} is {found[name]!r}, not {value!r}")
        elif absent_is_said or (name in wanted.get("maybe", {}) and name not in refused):
            counts["flags_right"] += 1
        else:
            counts["missing"] += 1
            silent = name not in refused and not seen["unresolved"]
            counts["silent"] += silent
            faults.append(
                f"{where}: {name} is missing {'(silent)' if silent else '(said)'}; should be {value!r}"
            )
    for name in wanted.get("present", ()):
        # A value too long to repeat: it must be there.
        counts["flags"] += 1
        counts["flags_right" if name in found else "missing"] += 1
    for name in set(found) - set(expected) - set(wanted.get("present", ())):
        counts["invented_flags"] += 1
        faults.append(f"{where}: INVENTED {name} {found[name]!r}")


def print_table(totals: dict[str, Counter[str]]) -> None:
    """A row for each format and one for all."""
    whole: Counter[str] = sum(totals.values(), Counter())
    print(f"{'format':17}{'files':>6}{'launches':>10}{'found':>7}{'flags':>7}{'right':>7}{'wrong':>7}{'missing':>9}"
          f"{'silent':>8}{'invented':>14}{'crashes':>9}")  # fmt: skip
    for name, row in [*sorted(totals.items()), ("all", whole)]:
        print(
            f"{name:17}{row['files']:>6}{row['launches']:>10}{row['found']:>7}{row['flags']:>7}"
            f"{row['flags_right']:>7}{row['wrong']:>7}{row['missing']:>9}"
            f"{row['silent'] + row['passed_over']:>8}"
            f"{row['invented']:>7} +{row['invented_flags']:>3} fl{row['crashes']:>9}"
        )
    print(
        f"launches found {percent(whole['found'], whole['launches'])}, flags right "
        f"{percent(whole['flags_right'], whole['flags'])}, models right "
        f"{percent(whole['found'] - whole['model_wrong'], whole['found'])}, GPU right "
        f"{percent(whole['gpu_right'], whole['gpu'])}, GPU count right "
        f"{percent(whole['num_gpus_right'], whole['num_gpus'])}, unknowns named "
        f"{percent(whole['unknowns_named'], whole['unknowns'])}"
    )


def percent(part: int, whole: int) -> str:
    """A share as text, with its numbers."""
    return f"{100 * part / whole:.1f} % ({part} of {whole})" if whole else "none"


if __name__ == "__main__":
    main()
