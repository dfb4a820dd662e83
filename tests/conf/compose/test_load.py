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
    with pytest.raises(ConfigError, match=r"own name has dots\. Write '\+sweep\.axes=\{training\.seed: \[1,2\]\}'\.$"):
        load(["sweep=175b", "sweep.axes.training.seed=[1,2]"])


def test_all_keys_that_a_group_lacks_are_named_at_once() -> None:
    tree = compose_tree()
    unfinished = {name: value for name, value in tree["slurm"].items() if name[0] not in "pq"}
    with pytest.raises(ConfigError, match=r"slurm\.partition = None: is missing, and so are qos, python\."):
        settings_of({**tree, "slurm": unfinished})


def test_an_entry_of_a_mapping_inside_another_one_is_set_without_a_plus() -> None:
    values = load(["trainer=torchtitan", "trainer.values.flavor.to.mine=own"]).trainer.values
    assert values["flavor"].to == {"mine": "own"}
    with pytest.raises(ConfigError, match=r"trainer\.values\.flavour\.of = None: is missing"):
        load(["trainer=torchtitan", "trainer.values.flavour.to.mine=own"])


def test_a_sweep_whose_name_is_all_digits_would_still_be_a_name() -> None:
    with pytest.raises(ConfigError, match=r"sweep = '175': is not an option.*Did you mean 175b\?"):
        load(["sweep=175"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster=frontir", r"cluster = 'frontir': is not an option of this group\. Did you mean frontier\?"),
        ("clutser=frontier", r"clutser = 'frontier': is not a key or group.*Did you mean cluster\?"),
        ("batch.micro_batch=2", r"batch\.micro_batch = '2': is not a key.*Did you mean batch\.micro_batch_size\?"),
        ("+cluster.nodes=2", r"cluster\.nodes = 2: is not a known key\. Did you mean cluster\.num_nodes\?"),
        ("batch.micro_batch_size=-1", r"batch\.micro_batch_size = -1: must be greater than 0"),
        (
            "training.num_steps=1e3",
            r"num_steps = 1000\.0: must be a whole number\. Write 1000, without a point or an expo",
        ),
        ("batch.micro_batch_size='2'", r"batch\.micro_batch_size = '2': must be a whole number"),
        (
            "model.rotary_scaling=3",
            r"model\.rotary_scaling = 3: is not a group of values\. Give it values for factor, low_freq_factor, ",
        ),
        ("parallel.recompute=some", r"parallel\.recompute = 'some': must be 'none', 'selective', 'full' or 'p"),
        ("model.num_query_groups=3", r"model\.num_query_groups = 3: does not divide model\.num_attention_heads = 4"),
        ("cluster=h100", r"cluster = 'h100': is not an option of this group\. Did you mean dgx-h100\?"),
        ("device=h101", r"device = 'h101': is not an option of this group\. Known: a100-40gb, a100-64gb, "),
        ("model.num_attention_heads=5", r"model\.num_attention_heads = 5: does not divide model\.hidden_size = 32"),
        ("batch.micro_batch_size", r"override = 'batch\.micro_batch_size'"),
        ("output_dir=a,b", r"output_dir = 'a,b': are several values.* or a text as \"output_dir='a,b'\""),
        ("output_dir='~nobody-here/x'", r"output_dir = '~nobody-here/x': begins with the home of a user"),
        ("output_dir=", r"output_dir = '': is empty\. Give output_dir=PATH"),
        (
            "model=",
            r"model = '': is not an option of this group\. Known: .*gpt-1\.4b.*`trisweep list model`",
        ),
        ("model=[a]", r"model = '\[a\]': is not an option of this group"),
        (f"model.name={'a' * 201}", r"model\.name = 'a+… \(203 characters\): must have at most 200 characters"),
        ("model.name='a b'", r"model\.name = 'a b': must be a name: letters"),
        ("training.learning_rate=inf", r"training\.learning_rate = inf: must be a finite number"),
        ("model.rotary_base=inf", r"model\.rotary_base = inf: must be a finite number"),
        (
            "model.experts={num_experts: 8, top_k: 2, ffn_hidden_size: 8, imbalance: inf}",
            r"model\.experts\.imbalance = inf: must be a finite number",
        ),
        ("cluster.links=3", r"cluster\.links = 3: must be a list\."),
        ("model.experts.top_k=2", r"model\.experts\.num_experts = None: is missing"),
        ("model.num_experts=8", r"is not a key .*Did you mean model\.experts\.num_experts\?"),
        ("zero=1", r"zero = '1': is not a key .*Did you mean parallel\.zero_stage\?"),
        ("dp=4", r"dp = '4': is not a key .*It follows: give parallel\.world_size, the number of devices"),
        ("parallel.data_parallel_size=4", r"is not a key .*It follows: give parallel\.world_size"),
        ("gradient_accumulation_steps=4", r"is not a key .*It follows: give batch\.global_batch_size and batch\.mic"),
        ("sweep=llama-3.1-8b", r"is not an option of this group\. It is an option of group model: write model=llama"),
        ("sweep.scaling=strong", r"sweep\.scaling = 'strong': belongs to a sweep, and none was named"),
        ("~nothing", r"~nothing = None: cannot be removed, as it is not set"),
        ("training.seed=${nothing}", r"training\.seed = '\$\{nothing\}': refers to nothing, which is not known"),
        ("training.seed=${training.seed}", r"training\.seed = .*: refers to what cannot be resolved"),
        ("a'b=1", r"a'b = '1': is not a key"),
        ("=3", r"override = '=3': states no key"),
        ("sweep=cluster=selene", r"sweep = 'cluster=selene': is not the name of a sweep\. Name the sweep first"),
        ("cluster=frontier,selene", r"cluster = .*: are several values.*plan --clusters frontier,selene"),
        ("parallel.tensor_size=8", r"parallel\.tensor_size = '8': .*Did you mean parallel\.tensor_parallel_size\?"),
        ("slurm.setup=[export A=1, ls]", r"Quote its entries, .* as in \"slurm\.setup=\['export A=1',ls\]\""),
        ("slurm.setup=[['a=1'],b=1]", r"Quote its entries, .* as in \"slurm\.setup=\['a=b',c\]\""),
        ("cluster.num_nodes=4,8", r"Give one of them\.$"),
        ("slurm.setup=a,b", r"Give one of them, or a list as slurm\.setup=\[a,b\]\.$"),
        ("tracking.experiment=", r"tracking\.experiment = '': is empty\. Give tracking\.experiment=NAME\."),
        ("tracking=server", r"tracking\.uri = None: a tracking server needs an address"),
        ("tracking.uri=postgresql://me:pw@host/runs", r"tracking\.uri = 'postgresql://host/runs': is an address"),
    ],
)
def test_a_wrong_override_names_key_value_and_remedy(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load([override])
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, InfeasiblePlan)


def test_an_evaluation_of_nothing_is_refused_where_it_is_planned_as_the_trainer_would() -> None:
    evaluated = ["training.evaluate_every=2"]
    with pytest.raises(InfeasiblePlan, match=r"training\.evaluate_every = 2: would evaluate no sequence"):
        load(evaluated).experiment()
    for more in (["data.held_out_fraction=0.1"], ["data=synthetic"], ["trainer=megatron-lm"]):
        load(evaluated + more).experiment()


@pytest.mark.parametrize(
    ("kind", "uri", "shown"),
    [
        ("server", "ftp://me:pw@host", "ftp://host"),
        ("server", "host:5000", "host:5000"),
        ("server", "postgresql://me:pw@host/runs", "postgresql://host/runs"),
        ("database", "https://host", "https://host"),
    ],
)
def test_an_address_to_which_no_store_answers_is_refused_before_anything_is_submitted(
    kind: str, uri: str, shown: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"tracking\.uri = '{shown}': is not an address of a tracking {kind}\. Give one"
    ):
        load([f"tracking={kind}", f"tracking.uri={uri}"])
    accepted = {"server": "http://me:pw@host:5000", "database": "mysql+pymysql://me:pw@host/runs"}[kind]
    assert load([f"tracking={kind}", f"tracking.uri={accepted}"]).tracking.uri == accepted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cluster.device.memory_bytes": -5}, r"cluster\.device\.memory_bytes = -5: must be greater than 0"),
        ({"cluster.num_nodes": "four"}, r"cluster\.num_nodes = 'four': must be a whole number"),
        ({"cluster.device.watts": 0}, r"cluster\.device\.watts = 0: must be greater than 0"),
        ({"cluster.device.price_per_hour": -1.0}, r"cluster\.device\.price_per_hour = -1\.0: must be greater"),
        ({"cluster.efficiency.matmul": 1.5}, r"cluster\.efficiency\.matmul = 1\.5: must be less than or equal"),
        ({"cluster.efficiency.memory": 0.0}, r"cluster\.efficiency\.memory = 0\.0: must be greater than 0"),
    ],
)
def test_a_cluster_file_with_a_bad_number_is_refused(change: dict[str, object], message: str) -> None:
    tree = with_values(compose_tree(["cluster=frontier"]), change)
    with pytest.raises(ConfigError, match=message):
        settings_of(tree)


def test_a_cluster_file_with_a_missing_number_is_refused() -> None:
    tree = compose_tree(["cluster=frontier"])
    del tree["cluster"]["device"]["memory_bytes"]
    with pytest.raises(ConfigError, match=r"cluster\.device\.memory_bytes = None: is missing"):
        settings_of(tree)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["parallel.world_size=16"], r"world_size = 16: is more than the 8 devices of cluster local"),
        (["parallel.world_size=3", "parallel.tensor_parallel_size=2"], r"world_size = 3: is not a multiple of"),
        (
            ["parallel.world_size=3", "parallel.tensor_parallel_size=3"],
            r"does not divide model\.num_attention_heads = 4",
        ),
        (
            ["parallel.world_size=8", "parallel.pipeline_parallel_size=8"],
            r"pipeline_parallel_size = 8: leaves stages without a layer: model\.num_layers = 4",
        ),
        (["parallel.world_size=3"], r"global_batch_size = 8: is not a multiple of"),
        (["parallel.sequence_parallel=true"], r"sequence_parallel = True: needs tensor_parallel_size above 1"),
        ([*FRONTIER_175B, "parallel.tensor_parallel_size=16"], r"is more than the 8 devices of a node"),
        (
            ["cluster=frontier", "model.num_attention_heads=6", "model.hidden_size=36", "model.ffn_hidden_size=144"]
            + [
                "model.vocab_size=768",
                "parallel.tensor_parallel_size=6",
                "parallel.world_size=24",
            ],
            r"tensor_parallel_size = 6: does not divide cluster\.devices_per_node = 8",
        ),
        ([*FRONTIER_175B, "parallel.world_size=12"], r"does not fill whole nodes|is not a multiple of"),
        (
            ["model=llama-3.1-8b", *FRONTIER_175B[1:], "parallel.tensor_parallel_size=16"]
            + ["parallel.tensor_parallel_across_nodes=true"],
            r"tensor_parallel_size = 16: is not run by trisweep: each of its tensor ranks holds whole groups",
        ),
        (
            ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[3,2]"],
            r"layers_per_stage = \[3, 2\]: adds up to 5 layers, and model\.num_layers = 4\. Choose numbers that add",
        ),
        (
            ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[2,1,1]"],
            r"layers_per_stage = \[2, 1, 1\]: names 3 stages, and parallel\.pipeline_parallel_size = 2",
        ),
        (["parallel.schedule=zero-bubble"], r"schedule = 'zero-bubble': needs pipeline_parallel_size above 1"),
        (
            ["parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2"],
            r"schedule = 'interleaved': needs pipeline_parallel_size above 1",
        ),
        (
            [*FRONTIER_175B, *INTERLEAVED, "parallel.virtual_pipeline_size=7"],
            r"virtual_pipeline_size = 7: leaves chunks without a layer: stage 1 has 6 of 96 layers"
            r"\. Use parallel\.virtual_pipeline_size=6",
        ),
        (
            ["parallel.world_size=3", "parallel.pipeline_parallel_size=3", "batch.global_batch_size=9"]
            + [*INTERLEAVED, "parallel.virtual_pipeline_size=2"],
            r"leaves chunks without a layer: stage 1 has 1 of 4 layers\. Use parallel\.layers_per_stage=\[1,2,1\]",
        ),
        (
            ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[3,1]"]
            + [*INTERLEAVED, "parallel.virtual_pipeline_size=3"],
            r"leaves chunks without a layer: stage 1 has 1 of 4 layers\. Use parallel\.layers_per_stage=null",
        ),
        (
            ["training.compile_layers=true", "training.dropout=0.1"],
            r"training\.compile_layers = True: would compile anew .* Set training\.compile_layers=false",
        ),
        (
            ["training.compile_layers=true", "parallel.recompute=pointwise"],
            r"training\.compile_layers = True: traces away .* Set training\.compile_layers=false",
        ),
        (
            ["parallel.zero_stage=3", "watch.compare_replicas_every=10"],
            r"watch\.compare_replicas_every = 10: finds no replicas .* Use null",
        ),
        ([*FRONTIER_175B, "parallel.zero_stage=3"], r"zero_stage = 3: would gather the weights anew"),
        (
            ["cluster=dgx1-v100", "precision=bf16"],
            r"dtype = 'bf16': has no peak .* V100-16GB\. Choose one of fp16, fp32",
        ),
    ],
)
def test_values_that_cannot_exist_together_are_infeasible(overrides: list[str], message: str) -> None:
    settings = load(overrides)
    with pytest.raises(InfeasiblePlan, match=message):
        settings.experiment()


@pytest.mark.parametrize("override", ["parallel.virtual_pipeline_size=2", "parallel.schedule=interleaved"])
def test_chunks_and_the_interleaved_schedule_go_together_or_not_at_all(override: str) -> None:
    with pytest.raises(InfeasiblePlan, match=r"virtual_pipeline_size = \d: does not go with parallel\.schedule"):
        load([override])


def test_no_world_size_means_the_whole_cluster() -> None:
    assert load(FRONTIER_175B).experiment().parallel.world_size == 1024
    assert load([*FRONTIER_175B, "cluster.num_nodes=16"]).experiment().parallel.world_size == 128


def test_with_values_changes_a_copy_only() -> None:
    tree = compose_tree()
    changed = with_values(tree, {"batch.micro_batch_size": 2})
    assert (value_at(tree, "batch.micro_batch_size"), value_at(changed, "batch.micro_batch_size")) == (1, 2)


def test_with_values_refuses_a_key_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"batch\.micro = 2: is not a key.*Did you mean batch"):
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
    ("path", "problem"),
    [("a" * 250 + "/" + "b" * 250, r"500 for MLflow's store"), ("\u00e9" * 128, r"a name of more than 255 bytes")],
)
def test_an_output_folder_that_cannot_be_is_refused_by_its_key(path: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"^output_dir = .*{problem}"):
        load([f"output_dir='{path}'"])
