"""From what the user typed to a model: the demo, a Python object, or a Hugging Face folder or hub id."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hieronnx.errors import MissingExtraError, TargetError

if TYPE_CHECKING:
    from torch import nn

_FORMS = "expected 'demo', 'package.module:object', 'file.py:object', a folder with a Hugging Face model, or a hub id"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def load_model(target: str, *, trust_remote_code: bool = False, auto_class: str | None = None) -> nn.Module:
    """Return the model that a target names; one that is built here is in eval mode.

    The current directory becomes importable, as with `python -m`, and stays so: models import late too.

    Args:
        target: `demo`, `package.module:object`, `file.py:object`, a Hugging Face folder or a hub id. The
            object is an nn.Module, an nn.Module class or a function that returns one, called with nothing.
        trust_remote_code: allow a Hugging Face model to bring code of its own.
        auto_class: the transformers class to load with, instead of the one its config names.

    Raises:
        TargetError: there is no such target, or it gives no model.
        MissingExtraError: torch or transformers is needed and not installed.
    """
    _require("torch", "torch")
    if target == "demo":
        from hieronnx.capture.demo import build_demo

        return build_demo()
    if Path(target).is_dir():
        return _load_pretrained(target, trust_remote_code, auto_class)
    reference, colon, name = target.rpartition(":")
    if colon:
        return _load_reference(target, reference, name)
    if _HUB_ID.fullmatch(target) and not Path(target).exists():
        return _load_pretrained(target, trust_remote_code, auto_class)
    raise TargetError(_describe_unknown(target))


def _describe_unknown(target: str) -> str:
    if Path(target).suffix == ".py" and Path(target).is_file():
        return f"'{target}' names a file; name the model in it too: '{target}:object'"
    if Path(target).exists():
        return f"'{target}' is a file, not a model; {_FORMS}"
    return f"no such target '{target}'; {_FORMS}"


def _require(package: str, extra: str) -> Any:
    """Import an optional dependency."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # Any other missing module is the fault of that installation, which our extra would not mend.
        if error.name != package:
            raise
        raise MissingExtraError(package, extra) from error


def _load_reference(target: str, reference: str, name: str) -> nn.Module:
    """Load `package.module:object` or `file.py:object`."""
    if not reference or not name:
        raise TargetError(f"'{target}' is incomplete; {_FORMS}")
    is_file = reference.endswith(".py")
    found: Any = _import_file(Path(reference)) if is_file else _import_module(reference)
    for part in name.split("."):
        found = _get_attribute(found, part, target)
    return _build(found, target)


def _import_module(name: str) -> ModuleType:
    _make_importable(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise TargetError(f"importing '{name}' failed: {_describe(error)}") from error
        raise TargetError(
            f"no module '{error.name}' to import; it must be installed or lie in the current directory"
        ) from error
    except Exception as error:
        raise TargetError(f"importing '{name}' failed: {_describe(error)}") from error


def _import_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise TargetError(f"no file '{path}'; {_FORMS}")
    _make_importable(str(path.parent))  # as `python file.py` does, so that it finds its neighbours
    known = sys.modules.get(path.stem)
    if known is None:
        return _run_file(path, path.stem)
    if getattr(known, "__file__", None) == str(path):
        return known
    # A file that is named like a module in use must not take its place.
    return _run_file(path, f"{path.stem}_target")


def _run_file(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"'{path}' is no Python file; {_FORMS}")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TargetError(f"importing '{path}' failed: {_describe(error)}") from error
    return module


def _make_importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _get_attribute(owner: Any, name: str, target: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        place = f"module '{owner.__name__}'" if isinstance(owner, ModuleType) else type(owner).__name__
        message = f"target '{target}': {place} has no attribute '{name}'"
        public = [entry for entry in dir(owner) if not entry.startswith("_")]
        raise TargetError(message + _suggest(name, public)) from error


def _build(found: Any, target: str) -> nn.Module:
    """Turn an object into a model, calling it where it is a class or a factory."""
    from torch import nn

    if isinstance(found, nn.Module):
        return found
    if isinstance(found, type) and not issubclass(found, nn.Module):
        raise TargetError(f"target '{target}' is the class {found.__name__}, which is no nn.Module")
    if not callable(found):
        expected = "expected an nn.Module, an nn.Module class or a function that returns one"
        raise TargetError(f"target '{target}' is a {type(found).__name__}; {expected}")
    model = _call(found, target)
    if not isinstance(model, nn.Module):
        raise TargetError(f"target '{target}' returned a {type(model).__name__}; expected an nn.Module")
    return model.eval()


def _call(factory: Callable[[], object], target: str) -> object:
    needed = _required_parameters(factory)
    if needed:
        raise TargetError(
            f"target '{target}' needs arguments ({', '.join(needed)}); "
            "write a function without parameters that builds the model, and name that"
        )
    try:
        return factory()
    except Exception as error:
        raise TargetError(f"target '{target}' raised {_describe(error)}") from error


def _required_parameters(factory: Callable[[], object]) -> list[str]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # a builtin need not have a signature: calling it will tell
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _load_pretrained(target: str, trust_remote_code: bool, auto_class: str | None) -> nn.Module:
    """Load a Hugging Face model with the class that its config names."""
    if Path(target).is_dir() and not (Path(target) / "config.json").is_file():
        raise TargetError(f"the folder '{target}' has no config.json, so it holds no Hugging Face model")
    transformers = _require("transformers", "hf")
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(target, **options)
        _turn_off_cache(config)
        loader = _choose_class(transformers, config, target, auto_class)
        # Only the auto classes may fetch code, and only they take the option.
        known = {} if hasattr(loader, "config_class") else options
        model: nn.Module = loader.from_pretrained(target, config=config, **known)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(_describe_pretrained(target, error, trust_remote_code)) from error
    return model.eval()


def _turn_off_cache(config: Any) -> None:
    """Let the model return no cache: nobody passes one in here, and torch cannot export one that comes from nowhere."""
    parts = (getattr(config, name, None) for name in getattr(config, "sub_configs", ()))
    for part in (config, *parts):
        if getattr(part, "use_cache", False):
            part.use_cache = False


def _choose_class(transformers: Any, config: Any, target: str, auto_class: str | None) -> Any:
    """Return the class asked for, else the one that the config names, else AutoModel."""
    if auto_class is not None:
        chosen = getattr(transformers, auto_class, None)
        if hasattr(chosen, "from_pretrained"):
            return chosen
        message = f"transformers has no class '{auto_class}' to load '{target}' with"
        raise TargetError(message + _suggest(auto_class, dir(transformers)))
    names = list(getattr(config, "architectures", None) or ())
    # A class from the model's own code is reached through the auto class that its config assigns to it.
    auto_map = getattr(config, "auto_map", None) or {}
    names += [auto for auto, path in auto_map.items() if str(path).rpartition(".")[2] in names]
    classes = (getattr(transformers, name, None) for name in names)
    return next((found for found in classes if hasattr(found, "from_pretrained")), transformers.AutoModel)


def _describe_pretrained(target: str, error: Exception, trust_remote_code: bool) -> str:
    if not trust_remote_code and "trust_remote_code" in str(error):
        return f"'{target}' brings code of its own; if you trust it, pass --trust-remote-code"
    if not Path(target).is_dir() and isinstance(error, OSError):
        hint = _suggest(target, ["demo"]) or f"; {_FORMS}"
        return f"no folder and no reachable Hugging Face model '{target}' ({_describe(error)}){hint}"
    return f"could not load '{target}' with transformers: {_describe(error)}"


def _describe(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _suggest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
