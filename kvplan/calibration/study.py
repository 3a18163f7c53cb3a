"""The whole calibration in one go: launches in, fit, honest errors, and what could not be answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.calibration.cases import Case, Unanswered, prepare
from kvplan.calibration.evaluate import (
    Outcome,
    Score,
    calibrated_spread,
    leave_one_source_out,
    predict_all,
    score,
    with_spread,
)
from kvplan.calibration.fit import fit, targets_of
from kvplan.calibration.public_launches import read_public_launches
from kvplan.errors import InputError, MissingDependencyError
from kvplan.memory.overhead.fitted import FITTED

if TYPE_CHECKING:
    from kvplan.memory.overhead.coefficients import Coefficients


@dataclass(frozen=True, slots=True)
class Study:
    """Launches predicted and measured."""

    left_out: bool
    """Whether each launch was predicted by coefficients fitted without its source."""
    coefficients: Coefficients
    outcomes: tuple[Outcome, ...]
    unanswered: tuple[Unanswered, ...]
    """Usable launches without an answer, and why."""
    launches: int
    """In the file."""

    @property
    def score(self) -> Score:
        """The figures of all outcomes together."""
        return score(self.outcomes)


def default_launches_path() -> Path:
    """The published launches of the repository (they are not in the wheel).

    Raises:
        InputError: this is not a checkout.
    """
    # Beside an editable install, or in the checkout that somebody stands in.
    in_repository = Path("tests") / "data" / "launches.jsonl"
    path = Path(__file__).parents[2] / in_repository
    if not path.is_file():
        path = in_repository
    if not path.exists():
        raise InputError(
            "the published launches are part of the repository, not of the wheel", "give --launches FILE"
        )
    return path


def score_fitted(path: Path, profiles_dir: str | None = None) -> Study:
    """Every usable launch, predicted with the coefficients that are shipped.

    Raises:
        InputError: the file is not one of launches.
    """
    launches = read_public_launches(path)
    cases, missing = prepare((x for x in launches if x.is_usable), profiles_dir)
    outcomes, refused = predict_all(cases, lambda _: FITTED)
    return Study(
        left_out=False,
        coefficients=FITTED,
        outcomes=tuple(outcomes),
        unanswered=(*missing, *refused),
        launches=len(launches),
    )


def score_left_out(path: Path, profiles_dir: str | None = None) -> Study:
    """Every usable launch, predicted with coefficients fitted to all sources but its own.

    Raises:
        InputError: the file is not one of launches.
        MissingDependencyError: scipy is not installed.
    """
    launches, cases, missing = _prepared(path, profiles_dir)
    fitted = leave_one_source_out(cases, FITTED)
    usable = [case for case in cases if case.launch.is_usable]
    outcomes, refused = predict_all(usable, lambda case: fitted[case.launch.source])
    return Study(
        left_out=True,
        coefficients=FITTED,
        outcomes=tuple(outcomes),
        unanswered=(*missing, *refused),
        launches=launches,
    )


def refit(path: Path, profiles_dir: str | None = None) -> tuple[Coefficients, Study]:
    """Coefficients from all launches, their spread from leave-one-source-out, and the honest figures.

    Raises:
        InputError: the file is not one of launches.
        MissingDependencyError: scipy is not installed.
    """
    launches, cases, missing = _prepared(path, profiles_dir)
    fitted = fit(targets_of(cases))
    left_out = leave_one_source_out(cases, fitted)
    usable = [case for case in cases if case.launch.is_usable]

    def outcomes_at(scale: float) -> list[Outcome]:
        return predict_all(usable, lambda case: with_spread(left_out[case.launch.source], scale))[0]

    scale = calibrated_spread(outcomes_at)
    outcomes, refused = predict_all(usable, lambda case: with_spread(left_out[case.launch.source], scale))
    fitted = with_spread(fitted, round(scale, 2))
    return fitted, Study(
        left_out=True,
        coefficients=fitted,
        outcomes=tuple(outcomes),
        unanswered=(*missing, *refused),
        launches=launches,
    )


def _prepared(path: Path, profiles_dir: str | None) -> tuple[int, list[Case], list[Unanswered]]:
    """(launches in the file, cases that fit or score can use, usable launches that cannot be answered)."""
    try:
        import scipy  # noqa: F401  only to say what is missing before minutes of work
    except ImportError as error:
        raise MissingDependencyError(
            "the fit needs scipy", "pip install 'kvplan-tuner[calibrate]'"
        ) from error
    launches = read_public_launches(path)
    cases, missing = prepare(launches, profiles_dir)
    return len(launches), cases, [m for m in missing if m.launch.is_usable]
