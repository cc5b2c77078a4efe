"""The Hugging Face hub: which targets name a model there, and whether it answers."""

from __future__ import annotations

import logging
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

_LOG = logging.getLogger(__name__)
PREFIX = "hf://"
"""What a target begins with that names a model of the hub, whatever folders there are."""
# Names of models are often alike, as are those of folders: what is less alike than this is no slip of the hand.
_NEAR = 0.8


def list_near_models(target: str) -> list[str]:
    """List the folders with a Hugging Face model whose path is nearly that of a target, which is none itself."""
    found = [Path()]
    for part in target.split("/"):
        found = [folder / name for folder in found for name in _find_near(part, folder)]
    return [f"./{folder.as_posix()}" for folder in found if (folder / "config.json").is_file()]


def _find_near(name: str, folder: Path) -> list[str]:
    by_letters = {entry.name.lower(): entry.name for entry in list_folders(folder)}
    return [by_letters[near] for near in get_close_matches(name.lower(), by_letters, cutoff=_NEAR)]


def list_folders(folder: Path) -> list[Path]:
    """List the folders in a folder; none where there is none, or none that may be read."""
    with suppress(OSError):
        return sorted(entry for entry in folder.iterdir() if entry.is_dir())
    return []


def is_cached(name: str) -> bool:
    """Say whether a model of the hub was loaded here before."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def is_reachable(name: str, *, announced: bool) -> bool:
    """Ask the hub once for a model, saying so unless that is announced already; say whether it answers anything.

    transformers itself asks again and again, with longer and longer pauses.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        return False
    if not announced:
        _LOG.warning("asking the Hugging Face hub for '%s': there is no such folder", name)
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HfHubHTTPError:  # which is an answer, and transformers says better what it means
        return True
    except Exception:  # of the library that it connects with, which changes with the version
        return False
    return True
