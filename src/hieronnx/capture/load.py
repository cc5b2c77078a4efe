"""Loading the model that a target names: the demo, a Python object, or a Hugging Face folder or hub id."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hieronnx.capture.hub import PREFIX, is_cached, is_reachable, list_folders, list_near_models
from hieronnx.capture.specs import required, suggest
from hieronnx.errors import TargetError, describe_error, require

if TYPE_CHECKING:
    from torch import nn

_FORMS = "expected 'demo', 'package.module:object', 'file.py:object', a folder with a Hugging Face model, or a hub id"
_WHERE = "it must be installed or lie in the current directory"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def load_model(
    target: str, *, trust_remote_code: bool = False, auto_class: str | None = None, use_cache: bool = False
) -> nn.Module:
    """Return the model that a target names; one that is built here is in eval mode.

    For `package.module:object` the current directory becomes importable, as with `python -m`, and stays so: models
    import late too. Beside a file is looked only while it is imported and the model built, after all else.

    Args:
        target: `demo`, `package.module:object`, `file.py:object`, a Hugging Face folder or a hub id, which may begin
            with `hf://`. The object is an nn.Module, an nn.Module class or a function that returns one, called with
            nothing.
        trust_remote_code: allow a Hugging Face model to bring code of its own.
        auto_class: the transformers class to load with, instead of the one its config names.
        use_cache: let a Hugging Face model return its cache of keys and values.

    Raises:
        TargetError: there is no such target, or it gives no model.
        MissingExtraError: torch or transformers is needed and not installed.
    """
    check_target(target)
    if target == "demo":
        from hieronnx.capture.demo import build_demo

        return build_demo()
    if is_reference(target):
        with neighbours(target):  # what builds a model may import late
            return _build(load_reference(target), target)
    return _load_pretrained(target, trust_remote_code, auto_class, use_cache)


def check_target(target: str) -> None:
    """Make sure, as far as that can be told without torch and the network, that a target names a model.

    What looks like a path is one: it is never looked for on the Hugging Face hub. Nor is what looks like the name of
    a model in a folder here, unless it was loaded from the hub before.

    Raises:
        TargetError: there is no such target.
        MissingExtraError: torch or transformers is needed and not installed.
    """
    require("torch", "torch")
    path = Path(target)
    if target == "demo":
        return
    if is_reference(target):
        check_reference(target)
        return
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise TargetError(f"the folder '{target}' has no config.json, so it holds no Hugging Face model")
    elif path.suffix == ".py" and path.is_file():
        raise TargetError(f"'{target}' names a file; name the model in it too: '{target}:object'")
    elif path.exists():
        raise TargetError(f"'{target}' is a file, not a model; {_FORMS}")
    elif _is_path(target) and not target.startswith(PREFIX):
        folders = [entry.name for entry in list_folders(path.parent)]
        raise TargetError(f"no folder '{target}'{suggest(path.name, folders) or f'; {_FORMS}'}")
    else:
        _check_hub_id(target)
    require("transformers", "hf")


def _check_hub_id(target: str) -> None:
    """Make sure that what is no folder can be a model of the hub, and is not a folder that was mistyped."""
    name = target.removeprefix(PREFIX)
    if not _HUB_ID.fullmatch(name):
        raise TargetError(f"no such target '{target}'; {_FORMS}")
    if name == target:
        near = list_near_models(name)
        if near and not (importlib.util.find_spec("huggingface_hub") and is_cached(name)):
            meant = f"did you mean {' or '.join(map(repr, near))}?"
            raise TargetError(f"no folder '{target}'; {meant} If the hub is meant, write '{PREFIX}{target}'")
    elif Path(name).is_dir():
        raise TargetError(f"transformers would take the folder '{name}' for '{target}'; run this in another folder")


def is_reference(target: str) -> bool:
    """Say whether a target names a Python object."""
    return ":" in target and not target.startswith(PREFIX) and not Path(target).is_dir()


def _is_path(target: str) -> bool:
    """Say whether a target that does not exist looks like a path: a hub id has one slash at most, within."""
    separators = target.replace(os.sep, "/").count("/")
    beside = Path(target).parent
    in_folder = separators == 1 and beside != Path() and beside.is_dir()
    return separators > 1 or target.startswith((".", "~", "/")) or target.endswith("/") or in_folder


def check_reference(target: str) -> None:
    """Make sure, as far as that can be told without running it, that `package.module:object` or `file.py:object` is.

    Raises:
        TargetError: If it is not.
    """
    reference, _, name = target.rpartition(":")
    if not reference or not name:
        raise TargetError(f"'{target}' is incomplete; {_FORMS}")
    if reference.endswith(".py"):
        if not Path(reference).expanduser().is_file():
            raise TargetError(f"no file '{Path(reference).expanduser().resolve()}'; {_FORMS}")
        return
    _make_importable(os.getcwd())
    package = reference.partition(".")[0]
    if package not in sys.modules and package.isidentifier() and importlib.util.find_spec(package) is None:
        raise TargetError(f"no module '{package}' to import; {_WHERE}")


def load_reference(target: str) -> Any:
    """Load the object that `package.module:object` or `file.py:object` names.

    Raises:
        TargetError: If there is none.
    """
    check_reference(target)
    reference, _, name = target.rpartition(":")
    with neighbours(target):
        value: Any = _import_file(Path(reference)) if reference.endswith(".py") else _import_module(reference)
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            owner = f"module '{value.__name__}'" if isinstance(value, ModuleType) else type(value).__name__
            hint = suggest(part, [entry for entry in dir(value) if not entry.startswith("_")])
            raise TargetError(f"target '{target}': {owner} has no attribute '{part}'{hint}") from error
    return value


def _import_module(name: str) -> ModuleType:
    _make_importable(os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            message = f"no module '{missing}' to import; {_WHERE}"
        else:
            message = f"importing '{name}' failed: {describe_error(error)}"
        raise TargetError(message) from error


def _import_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    imported = sys.modules.get(path.stem)
    if imported is not None and getattr(imported, "__file__", None) == str(path):
        return imported
    # A file that is named like a module in use must not take its place.
    name = path.stem if imported is None else f"{path.stem}_target"
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
        raise TargetError(f"importing '{path}' failed: {describe_error(error)}") from error
    return module


@contextmanager
def neighbours(target: str) -> Iterator[None]:
    """Let what is beside a file be imported, for a target that names one; last, so that it stands in for nothing."""
    reference = target.rpartition(":")[0]
    folder = str(Path(reference).expanduser().resolve().parent)
    if not reference.endswith(".py") or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # whoever took it out
            sys.path.remove(folder)


def _make_importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _build(value: Any, target: str) -> nn.Module:
    """Turn an object into a model, calling it where it is a class or a factory."""
    from torch import nn

    if isinstance(value, nn.Module):
        return value
    if isinstance(value, type) and not issubclass(value, nn.Module):
        raise TargetError(f"target '{target}' is the class {value.__name__}, which is no nn.Module")
    if not callable(value):
        expected = "expected an nn.Module, an nn.Module class or a function that returns one"
        raise TargetError(f"target '{target}' is a {type(value).__name__}; {expected}")
    model = _call(value, target)
    if not isinstance(model, nn.Module):
        raise TargetError(f"target '{target}' returned a {type(model).__name__}; expected an nn.Module")
    return model.eval()


def _call(factory: Callable[[], object], target: str) -> object:
    try:
        needed = required(inspect.signature(factory).parameters)
    except ValueError:  # a builtin need not have a signature: calling it will tell
        needed = []
    if needed:
        raise TargetError(
            f"target '{target}' needs arguments ({', '.join(needed)}); "
            "write a function without parameters that builds the model, and name that"
        )
    try:
        return factory()
    except Exception as error:
        raise TargetError(f"target '{target}' raised {describe_error(error)}") from error


@cache
def list_torch_nn() -> list[str] | None:
    """List the modules of torch.nn without importing torch; None where they cannot be found so."""
    spec = importlib.util.find_spec("torch")
    source = Path(spec.origin).with_name("nn") / "modules" / "__init__.py" if spec and spec.origin else None
    if source is None or not source.is_file():
        return None
    for statement in ast.parse(source.read_text("utf-8")).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names: list[str] = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
            return names
    return None


def _load_pretrained(target: str, trust_remote_code: bool, auto_class: str | None, use_cache: bool) -> nn.Module:
    """Load a Hugging Face model with the class that its config names."""
    name = target.removeprefix(PREFIX)
    options: dict[str, Any] = {}
    if not Path(name).is_dir() and not is_reachable(name, announced=name != target):
        options["local_files_only"] = True  # those of the hub's cache
    import transformers

    trust = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **options, **trust)
        # Where nobody passes a cache in, torch cannot export one that comes from nowhere.
        for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
            if hasattr(part, "use_cache") and (use_cache or part.use_cache):
                part.use_cache = use_cache
        loader = _choose_class(transformers, config, target, auto_class)
        if not hasattr(loader, "config_class"):  # only the auto classes may fetch code, and only they take the option
            options |= trust
        model: nn.Module = loader.from_pretrained(name, config=config, **options)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(_describe_pretrained(target, error, trust_remote_code)) from error
    return model.eval()


def _choose_class(transformers: Any, config: Any, target: str, auto_class: str | None) -> Any:
    """Return the class asked for, else the one that the config names, else AutoModel."""
    if auto_class is not None:
        chosen = getattr(transformers, auto_class, None)
        if hasattr(chosen, "from_pretrained"):
            return chosen
        hint = suggest(auto_class, dir(transformers))
        raise TargetError(f"transformers has no class '{auto_class}' to load '{target}' with{hint}")
    names = list(getattr(config, "architectures", None) or ())
    # A class from the model's own code is reached through the auto class that its config assigns to it.
    auto_map = getattr(config, "auto_map", None) or {}
    names += [auto for auto, path in auto_map.items() if str(path).rpartition(".")[2] in names]
    classes = (getattr(transformers, name, None) for name in names)
    return next((named for named in classes if hasattr(named, "from_pretrained")), transformers.AutoModel)


def _describe_pretrained(target: str, error: Exception, trust_remote_code: bool) -> str:
    if not trust_remote_code and "trust_remote_code" in str(error):
        return f"'{target}' brings code of its own; if you trust it, pass --trust-remote-code"
    if not Path(target).is_dir() and isinstance(error, OSError):
        hint = suggest(target, ["demo"]) or f"; {_FORMS}"
        missing = "no" if target.startswith(PREFIX) else "no folder and no"
        return f"{missing} reachable Hugging Face model '{target}' ({describe_error(error)}){hint}"
    return f"could not load '{target}' with transformers: {describe_error(error)}"
