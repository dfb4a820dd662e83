"""Folders of weights as people have them: what counts is what the index names, or the one whole file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conf.errors import ConfigError
from conf.types.model_spec import ModelSpec
from tests.composed import load
from tests.messages import refused
from train_core.checkpoints.huggingface import Weights
from train_core.checkpoints.huggingface_config import warn_of_weights
from train_core.checkpoints.huggingface_layout import from_rows, source_of
from train_core.checkpoints.weight_files import is_weights
from train_core.checkpoints.what_to_read import whole_checkpoint
from train_core.model.transformer import Transformer

SIZES = ("num_layers=2", "hidden_size=32", "ffn_hidden_size=64", "num_attention_heads=4", "num_query_groups=2")
SMALL = ["model=tiny", "cluster=local", "data=synthetic", *(f"model.{size}" for size in SIZES)]
SMALL += ["model.vocab_size=96", "model.seq_length=16", "model.family=llama", "model.gated_mlp=true"]
SPEC = load([*SMALL, "model.tied_embeddings=false"]).model
INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
HEAD, FIRST = "lm_head.weight", "model.embed_tokens.weight"
LORA = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def tensors_of(spec: ModelSpec = SPEC) -> dict[str, Tensor]:
    """Random weights of a model, by their names there."""
    torch.manual_seed(0)
    return {
        name: tensor
        for parameter, value in Transformer(spec).named_parameters()
        for name, tensor in zip(
            source_of(parameter, spec).names,
            from_rows(torch.randn(value.shape), source_of(parameter, spec), spec),
            strict=True,
        )
    }


def sharded(folder: Path, tensors: dict[str, Tensor], count: int = 3) -> dict[str, str]:
    """Write so many shards with their index; returns which file holds what."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    placed: dict[str, str] = {}
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        own = names[number::count]
        save_file({name: tensors[name] for name in own}, folder / file)
        placed |= dict.fromkeys(own, file)
    return written(folder, placed)


def written(folder: Path, placed: dict[str, str]) -> dict[str, str]:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))
    return placed


def others(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, 0.01) for name, tensor in tensors.items()}


def head_in(folder: Path, spec: ModelSpec = SPEC) -> Tensor:
    return Weights(str(folder), spec).value("head.weight", torch.Size((spec.vocab_size, spec.hidden_size)))


BESIDE: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "z_old_model.safetensors": others,
    "model-00001-of-00002.safetensors": others,
    "consolidated.safetensors": lambda tensors: {"tok_embeddings.weight": torch.zeros(96, 32)},
    "adapter_model.safetensors": lambda tensors: {LORA: torch.zeros(8, 32)},
    "optimizer.safetensors": lambda tensors: {f"state.{name}.exp_avg": t.clone() for name, t in tensors.items()},
    "model.safetensors": others,
    "model.fp16.safetensors": lambda tensors: {name: tensor.half() for name, tensor in others(tensors).items()},
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_the_index_does_not_name_is_left_aside(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = tensors_of()
    sharded(tmp_path, tensors)
    save_file(BESIDE[name](tensors), tmp_path / name)
    assert torch.equal(head_in(tmp_path), tensors[HEAD])
    warn_of_weights(load([*SMALL, "model.tied_embeddings=false", f"checkpoint.load={tmp_path}"]).experiment(), _none)
    assert f"not read: {name}" in caplog.text


def _none() -> str | None:
    return None


@pytest.mark.parametrize("name", [name for name in BESIDE if name != WHOLE])
def test_without_an_index_the_file_of_that_name_is_the_model(name: str, tmp_path: Path) -> None:
    tensors = tensors_of()
    save_file(tensors, tmp_path / WHOLE)
    save_file(BESIDE[name](tensors), tmp_path / name)
    assert torch.equal(head_in(tmp_path), tensors[HEAD])


def test_a_tensor_that_lies_twice_is_the_one_that_the_index_means(tmp_path: Path) -> None:
    tensors = tensors_of()
    placed = sharded(tmp_path, tensors)
    overlay = {HEAD: torch.ones(96, 32), FIRST: torch.ones(96, 32)}
    save_file(overlay, tmp_path / "model-overlay-00001.safetensors")
    written(tmp_path, placed | {HEAD: "model-overlay-00001.safetensors"})
    weights = Weights(str(tmp_path), SPEC)
    assert torch.equal(weights.value("head.weight", torch.Size((96, 32))), overlay[HEAD])
    assert torch.equal(weights.value("embedding.tokens.weight", torch.Size((96, 32))), tensors[FIRST])


def test_tensors_of_a_named_shard_that_the_index_does_not_list_are_no_part_of_it(tmp_path: Path) -> None:
    tensors = tensors_of()
    placed = sharded(tmp_path, tensors | {"mtp.norm.weight": torch.ones(32)})
    del placed["mtp.norm.weight"]
    written(tmp_path, placed)
    assert torch.equal(head_in(tmp_path), tensors[HEAD])


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    sharded(tmp_path, tensors_of())
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path)


def test_a_stale_index_beside_a_whole_file_names_that_file_as_the_way_out(tmp_path: Path) -> None:
    tensors = tensors_of()
    sharded(tmp_path, tensors)
    for shard in tmp_path.glob("model-*.safetensors"):
        shard.unlink()
    save_file(tensors, tmp_path / WHOLE)
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path)
    assert torch.equal(head_in(tmp_path / WHOLE), tensors[HEAD])


def test_a_tensor_that_the_index_places_elsewhere_is_named(tmp_path: Path) -> None:
    placed = sharded(tmp_path, tensors_of())
    wrong = next(file for file in placed.values() if file != placed[HEAD])
    written(tmp_path, placed | {HEAD: wrong})
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path)


def test_an_index_of_another_model_is_said_by_its_first_tensor(tmp_path: Path) -> None:
    placed = sharded(tmp_path, tensors_of())
    written(tmp_path, placed | {"model.layers.0.self_attn.q_proj.bias": placed[HEAD]})
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path)
    written(tmp_path, {name: file for name, file in placed.items() if name != FIRST})
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 1}}', "\xff", "version https"],
)
def test_an_index_that_says_nothing_is_no_traceback(text: str, tmp_path: Path) -> None:
    sharded(tmp_path, tensors_of())
    (tmp_path / INDEX).write_bytes(text.encode("latin-1"))
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path)


def test_a_tied_head_that_the_index_lists_and_no_file_holds_is_not_missed(tmp_path: Path) -> None:
    spec = load([*SMALL, "model.tied_embeddings=true"]).model
    tensors = tensors_of(spec)
    placed = sharded(tmp_path, tensors)
    written(tmp_path, placed | {HEAD: placed[FIRST]})
    value = Weights(str(tmp_path), spec).value("embedding.tokens.weight", torch.Size((96, 32)))
    assert torch.equal(value, tensors[FIRST])


def test_a_snapshot_of_the_hubs_cache_is_links_to_blobs(tmp_path: Path) -> None:
    tensors = tensors_of()
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abc"
    sharded(blobs, tensors)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(blobs.iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:064x}")
    assert torch.equal(head_in(snapshot), tensors[HEAD])
    with refused(ConfigError, "checkpoint.load"):  # the folder above, as people copy it
        whole_checkpoint(tmp_path, {})
    (blobs / f"{1:064x}").unlink()
    with refused(ConfigError, "checkpoint.load"):
        head_in(snapshot)


def test_metas_own_files_in_a_folder_beside_are_not_looked_at(tmp_path: Path) -> None:
    tensors = tensors_of()
    sharded(tmp_path, tensors)
    (tmp_path / "original").mkdir()
    torch.save({}, tmp_path / "original" / "consolidated.00.pth")
    save_file(others(tensors), tmp_path / "original" / WHOLE)
    assert torch.equal(head_in(tmp_path), tensors[HEAD])


def test_shards_without_their_index_are_refused(tmp_path: Path) -> None:
    sharded(tmp_path, tensors_of())
    (tmp_path / INDEX).unlink()
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path)


def test_one_shard_is_no_model(tmp_path: Path) -> None:
    sharded(tmp_path, tensors_of())
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path / "model-00002-of-00003.safetensors")


def test_one_file_of_another_name_is_the_model(tmp_path: Path) -> None:
    tensors = tensors_of()
    save_file(tensors, tmp_path / "weights.safetensors")
    assert torch.equal(head_in(tmp_path), tensors[HEAD])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("adapter_model.safetensors", LORA),
        ("consolidated.safetensors", "layers.0.attention.wq.weight"),
    ],
)
@pytest.mark.parametrize("by", ["folder", "file"])
def test_what_is_no_model_of_transformers_is_said(name: str, tensor: str, by: str, tmp_path: Path) -> None:
    save_file({tensor: torch.zeros(8, 32)}, tmp_path / name)
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path if by == "folder" else tmp_path / name)


def test_a_pointer_of_git_lfs_is_said(tmp_path: Path) -> None:
    (tmp_path / WHOLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n")
    with refused(ConfigError, "checkpoint.load"):
        head_in(tmp_path)


@pytest.mark.parametrize("by", ["folder", "file"])
@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "llama.Q4_K_M.gguf",
        "consolidated.00.pth",
        "model.pt",
        "tf_model.h5",
        "flax_model.msgpack",
    ],
)
def test_other_formats_say_how_they_become_safetensors(name: str, by: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"anything")
    named = tmp_path if by == "folder" else path
    assert not is_weights(str(named))
    with refused(ConfigError, "checkpoint.load"):
        whole_checkpoint(named, {})


@pytest.mark.parametrize("folder", ["iter_0000100", "global_step100", "checkpoint-500"])
def test_folders_of_other_programs_say_what_they_are(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    save_file({}, tmp_path / folder / WHOLE)
    with refused(ConfigError, "checkpoint.load"):
        whole_checkpoint(tmp_path, {})


@pytest.mark.slow
def test_the_printed_conversion_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "old weights"
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=False, rms_norm_eps=1e-5,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    torch.save(load_file(folder / WHOLE), folder / "pytorch_model.bin")
    (folder / WHOLE).unlink()
    with pytest.raises(ConfigError) as caught:
        whole_checkpoint(folder, {})
    python, option, program, *words = shlex.split(caught.value.remedy.partition("Convert it first: ")[2])
    assert (python, option) == ("python", "-c")
    monkeypatch.setattr("sys.argv", ["-c", *words])
    exec(program, {})
    assert torch.equal(head_in(Path(f"{folder}-safetensors")), model.lm_head.weight)


@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_of_tied_weights_either_name_is_enough(family: str, tmp_path: Path) -> None:
    # A file of tensors that share memory keeps one name of them, and not always the embedding's.
    gpt = ["model.family=gpt", "model.gated_mlp=false", "model.num_query_groups=4"] if family == "gpt" else []
    spec = load([*SMALL, *gpt, "model.tied_embeddings=true"]).model
    tensors = tensors_of(spec)
    (embedding,) = source_of("embedding.tokens.weight", spec).names
    renamed = {HEAD if name == embedding else name: tensor for name, tensor in tensors.items()}
    for folder, writing in ((tmp_path / "one", 1), (tmp_path / "three", 3)):
        sharded(folder, renamed, writing)
        value = Weights(str(folder), spec).value("embedding.tokens.weight", torch.Size((96, 32)))
        assert torch.equal(value, tensors[embedding])
    untied = load([*SMALL, *gpt, "model.tied_embeddings=false"]).model
    with refused(ConfigError, "checkpoint.load"):
        Weights(str(tmp_path / "one"), untied)


def test_an_index_that_is_named_itself_means_its_folder(tmp_path: Path) -> None:
    sharded(tmp_path, tensors_of())
    with refused(ConfigError, "checkpoint.load"):
        whole_checkpoint(tmp_path / INDEX, {})


def test_an_index_may_name_files_as_it_likes(tmp_path: Path) -> None:
    # As of models whose shards are called consolidated-00001-of-00051.
    tensors = tensors_of()
    placed = sharded(tmp_path, tensors)
    for file in {*placed.values()}:
        (tmp_path / file).rename(tmp_path / file.replace("model", "consolidated"))
    written(tmp_path, {name: file.replace("model", "consolidated") for name, file in placed.items()})
    assert torch.equal(head_in(tmp_path), tensors[HEAD])


def test_a_checkpoint_of_this_trainer_is_what_its_own_list_names(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text("{}")
    save_file(tensors_of(), tmp_path / WHOLE)
    assert not is_weights(str(tmp_path))


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int32])
def test_values_without_their_scales_are_refused(kind: torch.dtype, tmp_path: Path) -> None:
    save_file({name: t.to(kind) if "proj" in name else t for name, t in tensors_of().items()}, tmp_path / WHOLE)
    with refused(ConfigError, "checkpoint.load"):
        Weights(str(tmp_path), SPEC)


def test_an_index_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    tensors = tensors_of()
    sharded(tmp_path, tensors)
    (tmp_path / INDEX).write_bytes(b"\xef\xbb\xbf" + (tmp_path / INDEX).read_bytes())
    assert torch.equal(head_in(tmp_path), tensors[HEAD])


def test_a_folder_without_weights_says_how_they_come_there(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    with refused(ConfigError, "checkpoint.load"):
        whole_checkpoint(tmp_path, {})


def test_a_name_on_the_hub_is_told_how_it_becomes_a_folder() -> None:
    with refused(ConfigError, "checkpoint.load"):
        whole_checkpoint(Path("meta-llama/Llama-2-7b-hf"), {})
