"""Clusters, models and sweeps of one's own lie in folders of one's own, which come before the package's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.compose.load import load, load_cluster
from conf.compose.model_from import expand_model_from
from conf.errors import ConfigError, UsageError
from conf.folders import VARIABLE, conf_dir, further_folders, groups, options, options_of, own_folders, path_of
from conf.overrides import Overrides
from launcher.where import compose_for_slurm
from tests.messages import refused

Own = Callable[..., Path]
SELENE = (conf_dir() / "cluster" / "selene.yaml").read_text()


@pytest.fixture
def own(tmp_path: Path) -> Own:
    """`own("name", {"cluster/mine.yaml": text})`: a folder of configuration with these files."""

    def make(name: str, files: dict[str, str]) -> Path:
        for path, text in files.items():
            target = tmp_path / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return tmp_path / name

    return make


def cluster(name: str, num_nodes: int = 384) -> dict[str, str]:
    text = SELENE.replace("name: selene", f"name: {name}").replace("num_nodes: 384", f"num_nodes: {num_nodes}")
    return {f"cluster/{name}.yaml": text}


def test_an_own_cluster_is_chosen_by_its_name_like_any_other(own: Own) -> None:
    with further_folders([own("a folder, with = and é", cluster("mine"))]):
        assert load(["cluster=mine"]).cluster.name == "mine"
        assert load_cluster("mine").num_nodes == 384
        assert {"mine", "selene"} <= set(options("cluster"))
    assert "mine" not in options("cluster")


def test_an_own_file_holds_before_the_packages_of_the_same_name(own: Own) -> None:
    with further_folders([own("a", cluster("selene", num_nodes=3))]):
        assert load(["cluster=selene"]).cluster.num_nodes == 3
        assert path_of("cluster", "selene") != conf_dir() / "cluster" / "selene.yaml"
    assert load(["cluster=selene"]).cluster.num_nodes > 3


def test_the_command_line_holds_before_the_variable_and_that_before_the_file(
    own: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth = (own(str(n), cluster("mine", num_nodes=n)) for n in (1, 2, 3, 4))
    (tmp_path / "trisweep.yaml").write_text("config_dirs: ['4']\n")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert load_cluster("mine").num_nodes == 4
    monkeypatch.setenv(VARIABLE, f"{third}:{second}")
    assert load_cluster("mine").num_nodes == 3
    with further_folders([first]):
        assert load_cluster("mine").num_nodes == 1
        assert own_folders() == (first, third, second, fourth)


@pytest.mark.parametrize(
    "files",
    [
        {"mine": "other", "other": "mine"},
        {"selene": "selene"},
        {"mine": "/cluster: selene", "selene": "/cluster/selene"},
    ],
)
def test_a_file_that_builds_on_itself_is_named(own: Own, files: dict[str, str]) -> None:
    texts = {
        f"cluster/{name}.yaml": f"defaults: [{{{of}}}]" if ":" in of else f"defaults: [{of}, _self_]"
        for name, of in files.items()
    }
    with further_folders([own("a", texts)]), refused(ConfigError, "cluster"):
        load([f"cluster={next(iter(files))}"])


def test_slurm_settings_with_the_name_of_an_own_cluster_are_taken_without_asking(own: Own) -> None:
    text = (conf_dir() / "slurm" / "default.yaml").read_text().replace("partition: null", "partition: ours")
    with further_folders([own("a", {**cluster("mine"), "slurm/mine.yaml": text})]):
        assert compose_for_slurm(Overrides.parse(["cluster=mine"])).settings.slurm.partition == "ours"


@pytest.mark.parametrize(
    ("group", "of", "change"),
    [("model", "tiny", "name"), ("sweep", "smoke", "name"), ("trainer", "megatron-lm", "name")],
)
def test_every_group_takes_own_files(own: Own, group: str, of: str, change: str) -> None:
    text = (conf_dir() / group / f"{of}.yaml").read_text().replace(f"{change}: {of}", f"{change}: ours")
    with further_folders([own("a", {f"{group}/ours.yaml": text})]):
        chosen = load([f"{group}=ours"])
        assert getattr(chosen, group).name == "ours"


def test_what_an_editor_leaves_beside_a_file_is_no_option(own: Own) -> None:
    folder = own("a", {**cluster("mine"), "cluster/.mine.yaml": "half of it"}) / "cluster"
    (folder / ".#mine.yaml").symlink_to("me@host.123")
    (folder / "gone.yaml").symlink_to("nowhere")
    with further_folders([folder.parent]):
        assert {option.name for option in options_of("cluster") if option.is_own} == {"mine"}


def test_an_unknown_option_is_compared_with_own_files_too(own: Own) -> None:
    with (
        further_folders([own("a", cluster("quokka"))]),
        refused(ConfigError, "cluster"),
    ):
        load(["cluster=quoka"])


def test_a_folder_that_is_not_there_or_no_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for path in ("nowhere", "file"):
        with refused(ConfigError, "--config-dir"), further_folders([tmp_path / path]):
            pass
        monkeypatch.setenv(VARIABLE, str(tmp_path / path))
        with refused(ConfigError, "TRISWEEP_CONFIG_DIR"):
            load()


def test_the_home_of_somebody_unknown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    home = "~no-such-user/conf"
    with refused(ConfigError, "--config-dir"), further_folders([home]):
        pass
    with refused(ConfigError, "model_from"):
        expand_model_from([f"model_from={home}"])
    monkeypatch.setenv(VARIABLE, home)
    with refused(ConfigError, "TRISWEEP_CONFIG_DIR"):
        own_folders()


def test_a_current_folder_that_has_been_removed_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with refused(UsageError):
        load()


def test_a_folder_whose_root_would_replace_ours_is_refused(own: Own) -> None:
    with (
        refused(ConfigError, "--config-dir"),
        further_folders([own("a", {"config.yaml": "lr: 1\n"})]),
    ):
        pass


def test_an_own_file_that_is_not_yaml_is_named_with_its_folder_and_line(own: Own) -> None:
    folder = own("a", {"cluster/mine.yaml": "name: mine\nnum_nodes: [1\n"})
    with further_folders([folder]), refused(ConfigError, "conf"):
        load(["cluster=mine"])


def test_an_own_file_that_is_no_text_is_named(own: Own) -> None:
    folder = own("a", {"cluster/mine.yaml": ""})
    (folder / "cluster" / "mine.yaml").write_bytes(b"\xff\xfe\xff")
    with further_folders([folder]), refused(ConfigError, "conf"):
        load(["cluster=mine"])


def test_a_copied_cluster_file_that_kept_the_other_name_is_refused(own: Own) -> None:
    with (
        further_folders([own("a", {"cluster/mine.yaml": SELENE})]),
        refused(ConfigError, "cluster.name"),
    ):
        load(["cluster=mine"])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("# folders\nconfig_dirs: nowhere", "config_dirs"),
        ("config_dir: [a]", "config_dir"),
        ("output_dir: ''", "output_dir"),
        ("- a", "trisweep.yaml"),
        ("a: [", "trisweep.yaml"),
        ("a: \x01", "trisweep.yaml"),
        ("config_dirs: [nowhere]", "FILE"),
    ],
)
def test_a_wrong_trisweep_yaml_is_named_with_its_line_and_what_to_write(
    text: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trisweep.yaml"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    with refused(ConfigError, key.replace("FILE", str(file))):
        load()


def test_the_output_folder_of_trisweep_yaml_holds_unless_another_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "it's a 'quoted' place, é"
    (place / "below").mkdir(parents=True)
    (place / "trisweep.yaml").write_text("output_dir: my runs\n")
    monkeypatch.chdir(place / "below")
    assert load().output_dir == str(place / "my runs")
    assert load(["output_dir=here"]).output_dir == "here"


def test_own_folders_add_no_group(own: Own) -> None:
    with further_folders([own("a", {"clusters/mine.yaml": "a: 1"})]):
        assert "clusters" not in groups()
