"""The files of the catalogue: shapes of known models; statistics of traffic, which users may add to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from planner.documents.schema_base import DocumentModel, NonNegative, Positive, PositiveInt, Text
from planner.documents.tree import Tree
from planner.errors import Problem

# --------------------------------------------------------------------------------------------
# Models


class ModelEntry(DocumentModel):
    """One shape and every name it is published under."""

    ids: tuple[Text, ...] = Field(min_length=1, description="Published ids, the canonical one first.")
    aliases: tuple[Text, ...] = Field(default=(), description="Short names for the canonical id.")
    source: Text = Field(description="Where the numbers come from.")
    unverified: bool = Field(default=False, description="True where the source could not be read again.")
    config: dict[str, Any] = Field(description="The checkpoint's config.json, as far as it is needed.")
    variants: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Ids whose configuration differs, and in which keys."
    )


class ModelsDocument(DocumentModel):
    """Every model of the catalogue."""

    models: tuple[ModelEntry, ...] = Field(min_length=1, description="In the order in which they are listed.")


# --------------------------------------------------------------------------------------------
# Traffic


class QuantileTable(DocumentModel):
    """A length distribution: quantiles, linear between."""

    mean: Positive = Field(description="Mean of the trace, not of the table. [tok]")
    probabilities: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(description="Ascending, 0 to 1.")
    values: tuple[NonNegative, ...] = Field(description="Quantiles at these probabilities. [tok]")


class TrafficDocument(DocumentModel):
    """Statistics of a recorded traffic; facts only, no row of the trace."""

    name: Text = Field(description="Name in plans; of a file of the catalogue, also its stem.")
    description: Text = Field(description="What was recorded.")
    citation: str = Field(default="", description="Publication to cite.")
    source: Text = Field(description="File and revision that the statistics were computed from.")
    licence: str = Field(default="", description="Licence of the trace.")
    requests: PositiveInt = Field(description="Rows of the trace.")
    duration_s: Positive = Field(description="Last minus first arrival. [s]")
    request_rate: Positive = Field(description="Requests per duration. [req/s]")
    interarrival_cv: NonNegative = Field(description="Coefficient of variation of inter-arrival times.")
    dispersion_10s: NonNegative | None = Field(
        default=None, description="Variance over mean of arrivals in windows of 10 s."
    )
    dispersion_60s: NonNegative | None = Field(default=None, description="The same in windows of 60 s.")
    peak_60s_request_rate: Positive | None = Field(
        default=None, description="Of the busiest window of 60 s; absent where there is none. [req/s]"
    )
    input_tokens: QuantileTable = Field(description="Prompt lengths.")
    output_tokens: QuantileTable = Field(description="Output lengths.")
    isl_per_output_token: Positive = Field(
        description="Mean prompt length seen by an output token, E[isl osl] / E[osl]. [tok]"
    )
    longest_request_tokens: Positive | None = Field(
        default=None, description="Longest prompt plus output of one request. [tok]"
    )
    ideal_prefix_hit_rate: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Share of prompt tokens that an infinite prefix cache would hit."
    )
    note: str = Field(default="", description="What a reader has to know to use the figures.")

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        """Tables have as many values as probabilities."""
        problems = []
        for key in ("input_tokens", "output_tokens"):
            p, v = tree.get(key, "probabilities"), tree.get(key, "values")
            if isinstance(p, list) and isinstance(v, list) and len(p) != len(v):
                problems.append(
                    tree.problem((key, "values"), "needs one value per probability", show_value=False)
                )
        return problems


# --------------------------------------------------------------------------------------------
# Cloud prices


class CloudInstanceEntry(DocumentModel):
    """A server that a cloud rents out."""

    gpu: Text = Field(description="Name of its GPUs' profile.")
    gpus: PositiveInt = Field(description="GPUs as the profile counts them.")
    on_demand_usd_per_hour: Positive | None = Field(
        default=None, description="Of the whole instance, without commitment; absent where unknown. [USD/h]"
    )
    spot_usd_per_hour: Positive | None = Field(
        default=None, description="Of the whole instance, interruptible. [USD/h]"
    )
    vcpus: PositiveInt | None = Field(default=None, description="Virtual CPUs.")
    memory_gb: Positive | None = Field(default=None, description="Host memory. [GB]")
    network_gbps: Positive | None = Field(
        default=None, description="Of the whole instance, one direction. [Gbit/s]"
    )
    network_kind: str = Field(default="", description="EFA, InfiniBand, Ethernet, ...")
    rdma: bool | None = Field(default=None, description="Whether it is RDMA; absent where unknown.")
    region: str = Field(default="", description="Where the price holds.")
    date: str = Field(default="", description="When the price held; empty where unknown.")
    source: Text = Field(description="Where the figures were read.")
    status: Literal["checked", "second-hand", "unverified"] = Field(
        description="Read at the source, read where somebody quotes it, or from memory."
    )
    note: str = Field(default="", description="What a reader has to know.")


class CloudsDocument(DocumentModel):
    """Prices of rented servers."""

    clouds: dict[Text, dict[Text, CloudInstanceEntry]] = Field(description="By cloud and instance type.")
