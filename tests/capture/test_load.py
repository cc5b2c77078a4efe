"""A target that a user typed becomes a model, or one clear line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hieronnx.capture.demo import DemoModel, build_demo, demo_inputs
from hieronnx.capture.load import load_model
from hieronnx.errors import MissingExtraError, TargetError

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SOURCE = """
from dataclasses import dataclass
from torch import nn
import neighbour

@dataclass
class Options:
    size: int = 3

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(3, Options().size)])
    def forward(self, x):
        return self.parts[0](x)

class Needy(nn.Module):
    def __init__(self, size, *args, depth, **kwargs):
        super().__init__()

class Plain:
    pass

def make(size=3):
    return nn.Linear(size, size).train()

def fails():
    raise RuntimeError("no disk\\nand more")

def gives_list():
    return [1]

net = Net()
number = 3
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module to import, which leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "zoo_module.py").write_text(SOURCE)
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "broken.py").write_text("import no_such_dependency")
    (tmp_path / "wrong.py").write_text("1 +")
    return tmp_path


def expect_error(target: str, *parts: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_model(target)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


# --- the demo ---


def test_demo_is_built_in_eval_mode_and_runs() -> None:
    model = load_model("demo")
    assert isinstance(model, DemoModel)
    assert not model.training
    scores = model(**demo_inputs())
    assert scores.shape == (2, 4)
    assert torch.isfinite(scores).all()


def test_demo_is_the_same_each_time_and_leaves_the_random_state() -> None:
    before = torch.get_rng_state()
    first, second = build_demo(), build_demo()
    assert torch.equal(torch.get_rng_state(), before)
    inputs = demo_inputs()
    assert torch.equal(first(**inputs), second(**inputs))


def test_demo_mask_hides_a_position_that_would_matter() -> None:
    model, inputs = build_demo(), demo_inputs()
    assert not inputs["mask"].all()
    assert not torch.allclose(model(**inputs)[-1], model(inputs["tokens"])[-1])
    assert demo_inputs(length=1)["mask"].all()


# --- Python references ---


def test_an_instance_is_returned_as_it_is(project: Path) -> None:
    model = load_model("zoo_module:net")
    assert model is sys.modules["zoo_module"].net
    assert model.training


@pytest.mark.parametrize("name", ["Net", "make"])
def test_a_class_or_factory_is_called_and_put_in_eval_mode(project: Path, name: str) -> None:
    model = load_model(f"zoo_module:{name}")
    assert isinstance(model, nn.Module)
    assert not model.training


def test_dotted_attributes_reach_into_a_model(project: Path) -> None:
    assert isinstance(load_model("zoo_module:net.parts.0"), nn.Linear)


def test_a_file_is_loaded_by_its_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    model = load_model("../zoo_module.py:Net")
    assert type(model).__module__ == "zoo_module"
    assert load_model(f"{project}/zoo_module.py:net") is sys.modules["zoo_module"].net


def test_a_file_does_not_replace_a_module_of_its_name(project: Path) -> None:
    (project / "json.py").write_text(SOURCE)
    assert type(load_model("json.py:net")).__module__ == "json_target"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("zoo_module:nett", ["zoo_module:nett", "no attribute 'nett'", "did you mean 'net'"]),
        ("zoo_module:net.part", ["Net has no attribute 'part'", "did you mean 'parts'"]),
        ("zoo_module:number", ["is a int", "expected an nn.Module"]),
        ("zoo_module:Plain", ["class Plain", "no nn.Module"]),
        ("zoo_module:Needy", ["needs arguments (size, depth)", "write a function without parameters"]),
        ("zoo_module:fails", ["raised RuntimeError: no disk"]),
        ("zoo_module:gives_list", ["returned a list", "expected an nn.Module"]),
        ("zoo_module:", ["incomplete", "expected 'demo'"]),
        ("no_such_module:net", ["no module 'no_such_module'"]),
        ("zoo_module.deeper:net", ["zoo_module"]),
        ("broken:net", ["importing 'broken' failed", "no_such_dependency"]),
        ("wrong:net", ["importing 'wrong' failed", "SyntaxError"]),
        ("wrong.py:net", ["failed", "SyntaxError"]),
        ("missing.py:net", ["no file", "missing.py"]),
        ("zoo_module.py", ["zoo_module.py:object"]),
        ("./nowhere/at all", ["no folder", "expected 'demo'", "hub id"]),
    ],
)
def test_a_wrong_reference_gets_one_clear_line(project: Path, target: str, parts: list[str]) -> None:
    expect_error(target, *parts)


def test_a_failed_factory_keeps_its_cause(project: Path) -> None:
    with pytest.raises(TargetError) as caught:
        load_model("zoo_module:fails")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_failed_import_leaves_no_module(project: Path) -> None:
    expect_error("wrong.py:net")
    assert "wrong" not in sys.modules


# --- Hugging Face ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    path = tmp_path_factory.mktemp("hf") / "tiny"
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **sizes))
    model.save_pretrained(path)
    return path


@pytest.fixture
def remote(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose model is in code of its own; running that code makes a file `ran`."""
    import transformers

    copy = tmp_path / "remote"
    transformers.BertModel.from_pretrained(folder).save_pretrained(copy)
    config = json.loads((copy / "config.json").read_text())
    config |= {
        "model_type": "own-model",
        "architectures": ["OwnModel"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"},
    }
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "own.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from transformers import BertConfig, BertModel\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own-model'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    return copy


def test_a_folder_is_loaded_with_the_class_its_config_names(folder: Path) -> None:
    model = load_model(str(folder))
    assert type(model).__name__ == "BertForMaskedLM"
    assert not model.training


def test_the_class_can_be_chosen(folder: Path) -> None:
    assert type(load_model(str(folder), auto_class="AutoModel")).__name__ == "BertModel"
    assert type(load_model(str(folder), auto_class="BertModel")).__name__ == "BertModel"
    with pytest.raises(TargetError, match=r"no class 'BertModell'.*did you mean 'BertModel'"):
        load_model(str(folder), auto_class="BertModell")


def test_a_config_without_architectures_gives_the_base_model(folder: Path, tmp_path: Path) -> None:
    import transformers

    transformers.BertModel.from_pretrained(folder).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(load_model(str(tmp_path))).__name__ == "BertModel"


def test_code_of_a_model_never_runs_unless_trusted(remote: Path) -> None:
    expect_error(str(remote), "brings code of its own", "--trust-remote-code")
    assert not (remote.parent / "ran").exists()


def test_code_of_a_model_runs_when_trusted(remote: Path) -> None:
    model = load_model(str(remote), trust_remote_code=True)
    assert type(model).__name__ == "OwnModel"
    assert (remote.parent / "ran").exists()


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    expect_error(str(tmp_path), "has no config.json")


def test_a_folder_without_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    expect_error(str(tmp_path), "could not load", "model.safetensors")


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    expect_error(str(tmp_path), "could not load")


@pytest.mark.parametrize(("target", "part"), [("no-one/no-such-model", "hub id"), ("demoo", "did you mean 'demo'?")])
def test_an_unknown_hub_id_says_what_is_accepted(target: str, part: str) -> None:
    pytest.importorskip("transformers")
    expect_error(target, f"no reachable Hugging Face model '{target}'", part)


@pytest.mark.parametrize(("package", "extra"), [("torch", "torch"), ("transformers", "hf")])
def test_a_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # makes `import` fail as if it were not installed
    with pytest.raises(MissingExtraError, match=rf"pip install 'hieronnx\[{extra}\]'"):
        load_model("some/model")


def test_what_is_beside_a_file_stands_in_for_nothing(tmp_path: Path) -> None:
    """A neighbour is found; one with the name of a package is not, and afterwards the folder is unknown again."""
    (tmp_path / "own_layers.py").write_text("from torch import nn\nclass Own(nn.Linear): pass\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong one')")
    (tmp_path / "onnxscript.py").write_text("raise RuntimeError('the wrong one')")
    (tmp_path / "own_net.py").write_text(
        "import json\nimport onnxscript\nfrom own_layers import Own\n"
        "def make():\n    import own_late\n    return own_late.Late(2, 2)\n"
    )
    (tmp_path / "own_late.py").write_text("from own_layers import Own\nclass Late(Own): pass\n")
    before = list(sys.path)
    model = load_model(f"{tmp_path / 'own_net.py'}:make")
    assert type(model).__name__ == "Late"
    assert sys.path == before
