"""The settings that differ from site to site: Slurm's, for nodes, and MLflow's, for where runs are tracked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.credentials import without_credentials
from conf.errors import ConfigError
from conf.schema import Count, Frozen, Positive


class SlurmComponent(Frozen):
    """A mixed job's settings for one type of nodes; null keeps the machine's setting.

    Attributes:
        partition, account, qos, constraint, gpu_request, gpu_type, cpus_per_task, extra_sbatch: as in `slurm`.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpu_request: Literal["gpus-per-node", "gres", "none"] | None = None
    gpu_type: str | None = None
    cpus_per_task: Count | None = None
    extra_sbatch: dict[str, str | int | bool] | None = None


class SlurmSpec(Frozen):
    """Site settings of one Slurm machine.

    Attributes:
        partition: sbatch's --partition; null takes the site's default, as for the next two.
        account: sbatch's --account.
        qos: sbatch's --qos.
        time_limit_minutes: of each job.
        constraint: features that the nodes must have; null asks for none.
        cpus_per_task: cores of one rank; null leaves it to Slurm.
        gpu_request: how devices are asked for: `gpus-per-node`, `gres` (`gpu:N`) or `none` (whole nodes).
        gpu_type: Slurm's name of the type of device to ask for, such as `a100`; null takes any.
        components: what differs for single clusters of a mixed job, by the cluster's name.
        max_array_size: the most elements of one job array; null asks `scontrol show config`.
        array_parallelism: the most elements of an array that run at once (`%N`).
        setup: shell lines before srun (modules, environments).
        srun_args: further options of srun.
        environment: variables of the job.
        container_prefix: words before the Python of the job, such as `apptainer exec image.sif`; null for none.
        python: the interpreter on the compute nodes; null means the one that submits.
        extra_sbatch: further sbatch options, long names without the leading dashes.
        max_resubmits: how often a trial that lost its node or its place is submitted again.
        poll_seconds: commands that look again and again ask Slurm no more often than this, all of them together.
    """

    partition: str | None
    account: str | None
    qos: str | None
    time_limit_minutes: Count
    constraint: str | None
    gpu_request: Literal["gpus-per-node", "gres", "none"]
    cpus_per_task: Count | None
    max_array_size: Count | None
    array_parallelism: Count
    setup: Annotated[tuple[str, ...], Field(strict=False)]
    srun_args: Annotated[tuple[str, ...], Field(strict=False)]
    container_prefix: str | None
    python: str | None
    environment: dict[str, str]
    extra_sbatch: dict[str, str | int | bool]
    max_resubmits: Annotated[int, Field(ge=0)]
    poll_seconds: Positive = 5.0
    gpu_type: str | None = None
    components: dict[str, SlurmComponent] = Field(default_factory=dict)

    def on(self, cluster: str) -> SlurmSpec:
        """The settings for the nodes of one cluster of a mixed job."""
        given = {key: value for key, value in self.components.get(cluster, SlurmComponent()) if value is not None}
        return self.model_copy(update=given | {"extra_sbatch": self.extra_sbatch | given.get("extra_sbatch", {})})


class TrackingSpec(Frozen):
    """The store of MLflow's runs.

    Attributes:
        kind: `sqlite` keeps one file under the output folder; `database` writes into a database server, such as
            PostgreSQL, and keeps artifacts under the output folder; `server` sends both to an MLflow server.
        uri: of the database (`postgresql://user@host/name`) or the server (`https://host`); null for `sqlite`.
        experiment: MLflow's name for all runs together.
        live_seconds: how often a sweep that runs brings MLflow up to date; null does so only at its end.
    """

    kind: Literal["sqlite", "database", "server"]
    uri: str | None
    experiment: str
    live_seconds: Positive | None = 30.0

    @model_validator(mode="after")
    def _server_has_uri(self) -> TrackingSpec:
        if self.kind != "sqlite" and not self.uri:
            raise ConfigError(
                "tracking.uri", self.uri, f"a tracking {self.kind} needs an address", "Give tracking.uri=URL."
            )
        return self

    def without_credentials(self) -> TrackingSpec:
        """The store as records keep it, without a password in its address: others may read the records."""
        return self.model_copy(update={"uri": self.uri and without_credentials(self.uri)})

    def signed_in_as(self, configured: TrackingSpec) -> TrackingSpec:
        """A store read from a record, with the credentials of the configuration if that names the same store."""
        same = configured.without_credentials().model_copy(update={"live_seconds": self.live_seconds}) == self
        return configured if same else self
