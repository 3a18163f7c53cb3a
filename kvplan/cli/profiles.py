"""`kvplan profiles`: the models and cards that kvplan knows, and profiles of one's own."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from kvplan.cli.output import emit

app = typer.Typer(
    help="Models and GPUs that kvplan knows.\n\nEach fact with its source; add your own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Format(enum.StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"


_Query = Annotated[str | None, typer.Argument(help="Only those with these words in a name.")]
_Profiles = Annotated[str | None, typer.Option(help="Folder of your own profiles; they win.")]
_Format = Annotated[Format, typer.Option("--format", help="How to print.")]


@app.command("models")
def list_models(
    query: _Query = None, profiles: _Profiles = None, output_format: _Format = Format.TEXT
) -> None:
    """List or search the models."""
    from kvplan.catalog.models import model_profiles
    from kvplan.report.profiles import render_models

    found = model_profiles(profiles_dir=profiles)
    emit(render_models(found, query, as_json=output_format is Format.JSON))


@app.command("gpus")
def list_gpus(query: _Query = None, profiles: _Profiles = None, output_format: _Format = Format.TEXT) -> None:
    """List or search the GPUs, with the memory that software sees."""
    from kvplan.catalog.gpus import gpu_profiles
    from kvplan.report.profiles import render_gpus

    found = gpu_profiles(profiles_dir=profiles)
    emit(render_gpus(found, query, as_json=output_format is Format.JSON))


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A model or a GPU, by any of its names.")],
    profiles: _Profiles = None,
    output_format: _Format = Format.TEXT,
) -> None:
    """Show one profile: every fact and its source."""
    from kvplan.catalog.lookup import find_profile
    from kvplan.report.profiles import render_profile

    kind, record = find_profile(name, profiles_dir=profiles)
    emit(render_profile(kind, record, as_json=output_format is Format.JSON))


@app.command("add")
def add(
    model: Annotated[str, typer.Argument(help="A model's folder or config.json, or its hub id.")],
    name: Annotated[
        str | None, typer.Option(help="The profile's name; default: hub id or folder name.")
    ] = None,
    profiles: Annotated[str | None, typer.Option(help="Write it to this folder of profiles.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a profile of that name.")] = False,
    output_format: _Format = Format.TEXT,
) -> None:
    """Write a profile of a model's own files.

    It holds the config and the sizes in the safetensors headers.
    """
    from kvplan.catalog.models import read_model
    from kvplan.catalog.user_profile import add_model_profile
    from kvplan.report.profiles import render_added

    source = read_model(model, offline=offline, revision=revision)
    path = add_model_profile(source, name=name, profiles_dir=profiles, replace=replace)
    emit(render_added(source, str(path), as_json=output_format is Format.JSON))
