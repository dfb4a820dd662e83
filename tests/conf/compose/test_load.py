"""What a person types is checked, and every mistake is one message: the dotted key, the value, the remedy."""

from __future__ import annotations

import shutil
from itertools import zip_longest
from pathlib import Path

import pytest

from conf.compose.load import compose_tree, load, settings_of
from conf.compose.tree import part_at, value_at, with_values
from conf.errors import ConfigError, InfeasiblePlan
from conf.folders import conf_dir, options
from tests.messages import refused

FRONTIER_175B = [
    "model=gpt-175b",
    "cluster=frontier",
    "parallel=frontier-175b",
    "batch=frontier-175b",
    "precision=bf16",
]
INTERLEAVED = ["parallel.schedule=interleaved"]


def test_the_default_configuration_is_one_small_experiment() -> None:
    experiment = load().experiment()
    assert (experiment.model.name, experiment.cluster.name, experiment.parallel.world_size) == ("tiny", "local", 1)


@pytest.mark.slow
def test_every_option_of_every_group_is_valid() -> None:
    """Every device and cluster is loaded in `tests/conf/test_devices_and_clusters.py`."""
    for option in options("model"):
        load([f"model={option}"])
    groups = ("parallel", "batch", "precision", "data", "slurm", "training")
    for row in zip_longest(*map(options, groups)):  # one composition for an option of each group
        load([f"{group}={option}" for group, option in zip(groups, row, strict=True) if option is not None])


@pytest.mark.parametrize("sweep", options("sweep"))
def test_every_sweep_composes(sweep: str) -> None:
    spec = load([f"sweep={sweep}"]).sweep
    assert spec is not None
    assert spec.name == sweep


@pytest.mark.slow
def test_a_key_that_the_chosen_file_leaves_to_its_default_is_set_like_any_other() -> None:
    assert "scaling" not in compose_tree(["sweep=175b"])["sweep"]
    spec = load(["sweep=175b", "sweep.scaling=strong"]).sweep
    assert spec is not None
    assert spec.scaling == "strong"
    for extra in ("slurm.extra_sbatch={mem:0}", "slurm.extra_sbatch.mem=0"):
        assert load([extra]).slurm.extra_sbatch == {"mem": 0}


def test_the_output_folder_may_begin_with_a_home() -> None:
    for written in ("'~/x'", "~/x"):
        assert load([f"output_dir={written}"]).output_dir == str(Path.home() / "x")


SEEDS = "sweep.axes={training.seed: [1, 2]}"


@pytest.mark.parametrize(
    ("overrides", "key", "expected"),
    [
        ((SEEDS,), "sweep.axes", {"training.seed": [1, 2]}),
        ((SEEDS, "+sweep.axes={data.kind: [a]}"), "sweep.axes", {"training.seed": [1, 2], "data.kind": ["a"]}),
        (("sweep.axes={}",), "sweep.axes", {}),
        (("sweep.baseline={ }",), "sweep.baseline", {}),
        (("slurm=frontier", "slurm.extra_sbatch={}"), "slurm.extra_sbatch", {}),
        (("slurm=frontier", "slurm.extra_sbatch={}", "slurm.extra_sbatch.mem=0"), "slurm.extra_sbatch", {"mem": 0}),
    ],
)
def test_a_mapping_that_is_stated_whole_takes_the_place_of_the_files(
    overrides: tuple[str, ...], key: str, expected: object
) -> None:
    assert part_at(compose_tree(["sweep=175b", *overrides]), key) == expected


def test_axes_with_a_plus_are_added_to_the_sweeps_own() -> None:
    axes = compose_tree(["sweep=175b", f"+{SEEDS}"])["sweep"]["axes"]
    assert list(axes) == [*compose_tree(["sweep=175b"])["sweep"]["axes"], "training.seed"]


def test_an_axis_in_an_overrides_key_is_told_how_it_is_written() -> None:
    with refused(ConfigError, "sweep.axes.training.seed"):
        load(["sweep=175b", "sweep.axes.training.seed=[1,2]"])


def test_all_keys_that_a_group_lacks_are_named_at_once() -> None:
    tree = compose_tree()
    unfinished = {name: value for name, value in tree["slurm"].items() if name[0] not in "pq"}
    with refused(ConfigError, "slurm.partition"):
        settings_of({**tree, "slurm": unfinished})


def test_an_entry_of_a_mapping_inside_another_one_is_set_without_a_plus() -> None:
    values = load(["trainer=torchtitan", "trainer.values.flavor.to.mine=own"]).trainer.values
    assert values["flavor"].to == {"mine": "own"}
    with refused(ConfigError, "trainer.values.flavour.of"):
        load(["trainer=torchtitan", "trainer.values.flavour.to.mine=own"])


def test_a_sweep_whose_name_is_all_digits_would_still_be_a_name() -> None:
    with refused(ConfigError, "sweep"):
        load(["sweep=175"])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("cluster=frontir", "cluster"),
        ("clutser=frontier", "clutser"),
        ("batch.micro_batch=2", "batch.micro_batch"),
        ("+cluster.nodes=2", "cluster.nodes"),
        ("batch.micro_batch_size=-1", "batch.micro_batch_size"),
        ("training.num_steps=1e3", "training.num_steps"),
        ("batch.micro_batch_size='2'", "batch.micro_batch_size"),
        ("model.rotary_scaling=3", "model.rotary_scaling"),
        ("parallel.recompute=some", "parallel.recompute"),
        ("model.num_query_groups=3", "model.num_query_groups"),
        ("cluster=h100", "cluster"),
        ("device=h101", "device"),
        ("model.num_attention_heads=5", "model.num_attention_heads"),
        ("batch.micro_batch_size", "override"),
        ("output_dir=a,b", "output_dir"),
        ("output_dir='~nobody-here/x'", "output_dir"),
        ("output_dir=", "output_dir"),
        ("model=", "model"),
        ("model=[a]", "model"),
        (f"model.name={'a' * 201}", "model.name"),
        ("model.name='a b'", "model.name"),
        ("training.learning_rate=inf", "training.learning_rate"),
        ("model.rotary_base=inf", "model.rotary_base"),
        ("model.experts={num_experts: 8, top_k: 2, ffn_hidden_size: 8, imbalance: inf}", "model.experts.imbalance"),
        ("cluster.links=3", "cluster.links"),
        ("model.experts.top_k=2", "model.experts.num_experts"),
        ("model.num_experts=8", "model.num_experts"),
        ("zero=1", "zero"),
        ("dp=4", "dp"),
        ("parallel.data_parallel_size=4", "parallel.data_parallel_size"),
        ("gradient_accumulation_steps=4", "gradient_accumulation_steps"),
        ("sweep=llama-3.1-8b", "sweep"),
        ("sweep.scaling=strong", "sweep.scaling"),
        ("~nothing", "~nothing"),
        ("training.seed=${nothing}", "training.seed"),
        ("training.seed=${training.seed}", "training.seed"),
        ("a'b=1", "a'b"),
        ("=3", "override"),
        ("sweep=cluster=selene", "sweep"),
        ("cluster=frontier,selene", "cluster"),
        ("parallel.tensor_size=8", "parallel.tensor_size"),
        ("slurm.setup=[export A=1, ls]", "slurm.setup"),
        ("slurm.setup=[['a=1'],b=1]", "slurm.setup"),
        ("cluster.num_nodes=4,8", "cluster.num_nodes"),
        ("slurm.setup=a,b", "slurm.setup"),
        ("tracking.experiment=", "tracking.experiment"),
        ("tracking=server", "tracking.uri"),
        ("tracking.uri=postgresql://me:pw@host/runs", "tracking.uri"),
    ],
)
def test_a_wrong_override_names_key_value_and_remedy(override: str, key: str) -> None:
    with refused(ConfigError, key) as caught:
        load([override])
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, InfeasiblePlan)


def test_an_evaluation_of_nothing_is_refused_where_it_is_planned_as_the_trainer_would() -> None:
    evaluated = ["training.evaluate_every=2"]
    with refused(InfeasiblePlan, "training.evaluate_every"):
        load(evaluated).experiment()
    for more in (["data.held_out_fraction=0.1"], ["data=synthetic"], ["trainer=megatron-lm"]):
        load(evaluated + more).experiment()


@pytest.mark.parametrize(
    ("kind", "uri"),
    [
        ("server", "ftp://me:pw@host"),
        ("server", "host:5000"),
        ("server", "postgresql://me:pw@host/runs"),
        ("database", "https://host"),
    ],
)
def test_an_address_to_which_no_store_answers_is_refused_before_anything_is_submitted(kind: str, uri: str) -> None:
    with refused(ConfigError, "tracking.uri"):
        load([f"tracking={kind}", f"tracking.uri={uri}"])
    accepted = {"server": "http://me:pw@host:5000", "database": "mysql+pymysql://me:pw@host/runs"}[kind]
    assert load([f"tracking={kind}", f"tracking.uri={accepted}"]).tracking.uri == accepted


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"cluster.device.memory_bytes": -5}, "cluster.device.memory_bytes"),
        ({"cluster.num_nodes": "four"}, "cluster.num_nodes"),
        ({"cluster.device.watts": 0}, "cluster.device.watts"),
        ({"cluster.device.price_per_hour": -1.0}, "cluster.device.price_per_hour"),
        ({"cluster.efficiency.matmul": 1.5}, "cluster.efficiency.matmul"),
        ({"cluster.efficiency.memory": 0.0}, "cluster.efficiency.memory"),
    ],
)
def test_a_cluster_file_with_a_bad_number_is_refused(change: dict[str, object], key: str) -> None:
    tree = with_values(compose_tree(["cluster=frontier"]), change)
    with refused(ConfigError, key):
        settings_of(tree)


def test_a_cluster_file_with_a_missing_number_is_refused() -> None:
    tree = compose_tree(["cluster=frontier"])
    del tree["cluster"]["device"]["memory_bytes"]
    with refused(ConfigError, "cluster.device.memory_bytes"):
        settings_of(tree)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["parallel.world_size=16"], "parallel.world_size"),
        (["parallel.world_size=3", "parallel.tensor_parallel_size=2"], "parallel.world_size"),
        (["parallel.world_size=3", "parallel.tensor_parallel_size=3"], "parallel.tensor_parallel_size"),
        (["parallel.world_size=8", "parallel.pipeline_parallel_size=8"], "parallel.pipeline_parallel_size"),
        (["parallel.world_size=3"], "batch.global_batch_size"),
        (["parallel.sequence_parallel=true"], "parallel.sequence_parallel"),
        ([*FRONTIER_175B, "parallel.tensor_parallel_size=16"], "parallel.tensor_parallel_size"),
        (
            ["cluster=frontier", "model.num_attention_heads=6", "model.hidden_size=36", "model.ffn_hidden_size=144"]
            + [
                "model.vocab_size=768",
                "parallel.tensor_parallel_size=6",
                "parallel.world_size=24",
            ],
            "parallel.tensor_parallel_size",
        ),
        ([*FRONTIER_175B, "parallel.world_size=12"], "parallel.world_size"),
        (
            ["model=llama-3.1-8b", *FRONTIER_175B[1:], "parallel.tensor_parallel_size=16"]
            + ["parallel.tensor_parallel_across_nodes=true"],
            "parallel.tensor_parallel_size",
        ),
        (
            ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[3,2]"],
            "parallel.layers_per_stage",
        ),
        (
            ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[2,1,1]"],
            "parallel.layers_per_stage",
        ),
        (["parallel.schedule=zero-bubble"], "parallel.schedule"),
        (["parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2"], "parallel.schedule"),
        ([*FRONTIER_175B, *INTERLEAVED, "parallel.virtual_pipeline_size=7"], "parallel.virtual_pipeline_size"),
        (
            ["parallel.world_size=3", "parallel.pipeline_parallel_size=3", "batch.global_batch_size=9"]
            + [*INTERLEAVED, "parallel.virtual_pipeline_size=2"],
            "parallel.virtual_pipeline_size",
        ),
        (
            ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[3,1]"]
            + [*INTERLEAVED, "parallel.virtual_pipeline_size=3"],
            "parallel.virtual_pipeline_size",
        ),
        (["training.compile_layers=true", "training.dropout=0.1"], "training.compile_layers"),
        (["training.compile_layers=true", "parallel.recompute=pointwise"], "training.compile_layers"),
        (["parallel.zero_stage=3", "watch.compare_replicas_every=10"], "watch.compare_replicas_every"),
        ([*FRONTIER_175B, "parallel.zero_stage=3"], "parallel.zero_stage"),
        (["cluster=dgx1-v100", "precision=bf16"], "precision.dtype"),
    ],
)
def test_values_that_cannot_exist_together_are_infeasible(overrides: list[str], key: str) -> None:
    settings = load(overrides)
    with refused(InfeasiblePlan, key):
        settings.experiment()


@pytest.mark.parametrize("override", ["parallel.virtual_pipeline_size=2", "parallel.schedule=interleaved"])
def test_chunks_and_the_interleaved_schedule_go_together_or_not_at_all(override: str) -> None:
    with refused(InfeasiblePlan, "parallel.virtual_pipeline_size"):
        load([override])


def test_no_world_size_means_the_whole_cluster() -> None:
    assert load(FRONTIER_175B).experiment().parallel.world_size == 1024
    assert load([*FRONTIER_175B, "cluster.num_nodes=16"]).experiment().parallel.world_size == 128


def test_with_values_changes_a_copy_only() -> None:
    tree = compose_tree()
    changed = with_values(tree, {"batch.micro_batch_size": 2})
    assert (value_at(tree, "batch.micro_batch_size"), value_at(changed, "batch.micro_batch_size")) == (1, 2)


def test_with_values_refuses_a_key_that_does_not_exist() -> None:
    with refused(ConfigError, "batch.micro"):
        with_values(compose_tree(), {"batch.micro": 2})


def test_what_files_say_now_is_what_is_composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden_size = load(["model=tiny"]).model.hidden_size
    tiny = tmp_path / "model" / "tiny.yaml"
    tiny.parent.mkdir()
    shutil.copy(conf_dir() / "model" / "tiny.yaml", tiny)
    monkeypatch.setenv("TRISWEEP_CONFIG_DIR", str(tmp_path))
    assert load(["model=tiny"]).model.hidden_size == hidden_size
    tiny.write_text(tiny.read_text().replace(f"hidden_size: {hidden_size}", "hidden_size: 96"))
    assert load(["model=tiny"]).model.hidden_size == 96


@pytest.mark.parametrize(
    "path",
    ["a" * 250 + "/" + "b" * 250, "\u00e9" * 128],
)
def test_an_output_folder_that_cannot_be_is_refused_by_its_key(path: str) -> None:
    with refused(ConfigError, "output_dir", recorded=False):  # the first says how long the path of this folder is
        load([f"output_dir='{path}'"])
