"""A model on the Hugging Face hub: config.json and safetensors headers, never weights. Local cache first."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.catalog import folder
from kvplan.catalog.model_source import ModelSource
from kvplan.errors import InputError, MissingDependencyError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.architecture.stored_weights import StoredWeights

_HUB_ID: Final = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_id(query: str) -> bool:
    """Whether the words have the form `organisation/name`."""
    return _HUB_ID.fullmatch(query) is not None


def is_cached(model: str) -> bool:
    """Whether the local Hugging Face cache has something of this model; asks no library, so it is cheap."""
    env = os.environ.get
    home = env("HF_HOME") or f"{env('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    cache = Path(env("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    return (cache / f"models--{model.replace('/', '--')}" / "snapshots").is_dir()


def model_on_hub(model: str, *, revision: str | None = None, offline: bool = False) -> ModelSource:
    """The model of that hub id, from the local cache where it is complete, else from the hub.

    HF_TOKEN, HF_ENDPOINT (a mirror) and HF_HUB_OFFLINE mean what they mean to huggingface_hub.

    Raises:
        MissingDependencyError: huggingface_hub is not installed.
        UnknownNameError: the hub has no such model.
        InputError: gated without access, no such revision, no config.json, no network, or not in the cache
            while offline.
    """
    if offline and not is_cached(model):
        # Said before the library is imported, which takes a third of a second.
        raise _unreachable(model, f" at revision {revision!r}" if revision else "", offline=True)
    hub = _library(model)
    offline = offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    with _explained(model, revision, offline=offline):
        config_path = hub.try_to_load_from_cache(model, "config.json", revision=revision)
        cached = isinstance(config_path, str)
        if not cached:
            _refuse_unreachable(offline=offline)
            config_path = _download(hub, model, "config.json", revision, offline=offline)
            _quantization_beside(hub, model, revision)
    config, notes = folder.config_with_quantization(Path(config_path))
    snapshot = Path(config_path).parent
    weights = folder.weights_in_folder(snapshot)
    if not offline and (weights is None or weights.tensors is None):
        with _explained(model, revision, offline=offline):
            weights = _weights_on_hub(hub, model, revision) or weights
    return ModelSource(
        id=model,
        kind="hub",
        config=config,
        path=str(snapshot) if weights is not None and weights.source == str(snapshot.absolute()) else None,
        weights=weights,
        source=f"{model} at {snapshot.name}" + (" (local cache)" if cached else ""),
        notes=notes,
    )


def _library(model: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingDependencyError(
            f"{model!r} is neither a profile nor a folder, and reading it from the hub needs huggingface_hub",
            "pip install 'kvplan-tuner[hub]', or give a local folder",
        ) from error
    return huggingface_hub


def _refuse_unreachable(*, offline: bool) -> None:
    """Ask the hub for a sign of life: its library would try for half a minute before it gives up."""
    import httpx

    if not offline:
        httpx.head(_endpoint() or "https://huggingface.co", timeout=10)


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _download(hub: Any, model: str, name: str, revision: str | None, *, offline: bool) -> str:
    path: str = hub.hf_hub_download(
        model, name, revision=revision, local_files_only=offline, endpoint=_endpoint()
    )
    return path


def _quantization_beside(hub: Any, model: str, revision: str | None) -> None:
    """Fetch the file in which old ModelOpt checkpoints keep their quantisation, if there is one."""
    try:
        _download(hub, model, "hf_quant_config.json", revision, offline=False)
    except hub.errors.EntryNotFoundError:
        return


def _weights_on_hub(hub: Any, model: str, revision: str | None) -> StoredWeights | None:
    """Headers by ranged requests; None where the repository has no safetensors."""
    api = hub.HfApi(endpoint=_endpoint())
    try:
        found = api.get_safetensors_metadata(model, revision=revision)
    except (hub.errors.NotASafetensorsRepoError, hub.errors.SafetensorsParsingError):
        return None
    headers = (
        {
            name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.data_offsets}
            for name, tensor in file.tensors.items()
        }
        for file in found.files_metadata.values()
    )
    return folder.summed(headers, f"{model}, safetensors headers on the hub")


@contextmanager
def _explained(model: str, revision: str | None, *, offline: bool) -> Iterator[None]:
    """What went wrong at the hub, in words that say what to do."""
    import httpx
    from huggingface_hub import errors

    at = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except errors.GatedRepoError as error:
        raise InputError(
            f"{model} is gated: the hub shows its config only to those who accepted its licence",
            f"accept it at https://huggingface.co/{model} and set HF_TOKEN, or use a copy of it",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{model} has no revision {revision!r}", "name a branch, a tag or a commit of that repository"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UnknownNameError(
            f"no model {model!r}: no profile, no folder, and the hub has none of that name",
            "if it is private, set HF_TOKEN",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _unreachable(model, at, offline=offline) from error
    except errors.EntryNotFoundError as error:
        raise InputError(
            f"{model}{at} has no config.json", "a GGUF or adapter repository: give the model it was made from"
        ) from error
    except (errors.HFValidationError, ValueError) as error:
        raise InputError(
            f"{model!r} is no hub id: {error}", "write organisation/name, or a folder's path"
        ) from error
    except (errors.OfflineModeIsEnabled, errors.HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise _unreachable(model, at, offline=offline) from error


def _unreachable(model: str, at: str, *, offline: bool) -> InputError:
    why = (
        "offline the hub is not asked"
        if offline
        else f"{_endpoint() or 'https://huggingface.co'} does not answer"
    )
    return InputError(
        f"{model!r} is no profile, no folder and not in the local Hugging Face cache{at}, and {why}",
        "give a local folder or a profile's name (`kvplan profiles models`)"
        + ("" if offline else "; for a mirror set HF_ENDPOINT"),
    )
