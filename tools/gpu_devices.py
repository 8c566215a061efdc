"""What the input files of ``build_gpu_profiles.py`` do not say of a GPU: names, sources, memory, relatives.

Figures themselves stand in the CSV file of vendor figures. Here is which of them were read where; the
others are the vendor's as remembered, and become ``unverified``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# --------------------------------------------------------------------------------------------
# Kinds of facts


@dataclass(frozen=True)
class Estimate:
    """Where the coefficients of a GPU without operator tables come from.

    `of` names profiles whose geometric mean is taken, `log_sd` the least spread; `factors` multiply the
    compute efficiencies by number format (bf16, fp8, fp4), and shares of the bandwidth ("memory").
    """

    of: tuple[str, ...]
    log_sd: float
    method: str
    factors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """A profile to be.

    `trusted` names the columns whose figures were read in `spec_source`, `cross_read` those read in the
    InferenceX table. `pcie` holds the world sizes whose all-reduce goes over PCIe, and `pcie_of` the profile
    whose rows they are. The CSV's figures are those of `parts` devices; `memory_gib` and `driver_mib` those
    of one. `system` is what the operator tables call the GPU; empty where there are none.
    """

    name: str
    row: str
    aliases: tuple[str, ...]
    architecture: str
    memory_gib: float
    scale_up_kind: str
    spec_source: str = ""
    trusted: frozenset[str] = frozenset()
    cross_read: frozenset[str] = frozenset()
    memory_note: str = ""
    memory_source: str = ""
    memory_verified: bool = True
    driver_mib: int | None = None
    driver_note: str = ""
    driver_verified: bool = True
    scale_up_domain: int | None = None
    host_source: str = ""
    host_gb_per_s: float | None = None
    host_verified: bool = True
    network_source: str = ""
    network_verified: bool = True
    parts: int = 1
    note: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    system: str = ""
    pcie: tuple[int, ...] = ()
    pcie_of: str = "l40s"
    estimate: Estimate | None = None


AIC = "aiconfigurator-core 0.12.0, systems/{system}.yaml (Apache-2.0)"
INFERENCEX = "SemiAnalysis InferenceX-app, packages/app/src/lib/gpu-specs.ts at 39a9911"
OOM = "total capacity in PyTorch's out-of-memory messages on this GPU; drivers differ by 0.2 %"
SMI = {
    "NVIDIA": "nvidia-smi on this GPU, as in public logs",
    "Intel": "hl-smi on this GPU, as in public test data",
}
PCIE3 = "PCI Express 3.0 x16: 8 GT/s x 16 lanes x 128/130 / 8 bits"
PCIE4 = "PCI Express 4.0 x16: 16 GT/s x 16 lanes x 128/130 / 8 bits"
PCIE5 = "PCI Express 5.0 x16: 32 GT/s x 16 lanes x 128/130 / 8 bits"
PCIE6 = "PCI Express 6.0 x16: 64 GT/s x 16 lanes / 8 bits, less its framing"
C2C_SHARED = "NVLink-C2C to Grace, 450 GB/s per direction shared by two GPUs"
USUAL_NETWORK = "usual NIC share of this GPU in rented servers, as remembered"
NIC_400 = "one 400 Gbit/s NIC per GPU; " + INFERENCEX
NIC_800 = "one 800 Gbit/s NIC per GPU; " + INFERENCEX

AIC_COLUMNS = frozenset(
    {"bf16_tflops", "fp16_tflops", "fp8_tflops", "int8_tops", "fp4_tflops", "mem_bw_gbs", "tdp_w"}
    | {"scaleup_gbs_per_dir", "gpus_per_node"}
)
AIC_CARD = AIC_COLUMNS - {"scaleup_gbs_per_dir", "fp4_tflops"}  # a card whose bridge the package leaves out
IX_COLUMNS = frozenset(
    {"bf16_tflops", "fp16_tflops", "fp8_tflops", "fp4_tflops", "mem_bw_gbs", "scaleup_gbs_per_dir"}
    | {"scaleup_domain", "gpus_per_node"}
)
SPARSE_NOTE = "The vendor prints twice this figure, with sparsity."
NODE_NOTE = "The node; there is no peer-to-peer link."
PAIR_NOTE = "A bridge joins two cards; larger groups talk over PCIe."

# --------------------------------------------------------------------------------------------
# Neighbours

ALL = ("h100-sxm", "h200-sxm", "a100-80gb-sxm", "l40s", "b200-sxm", "gb200")
_REPLACED = "to be replaced by `planner profile` on the device."
FAMILY_LOG_SD, BOARD_LOG_SD, FAR_LOG_SD = 0.2, 0.25, 0.3

L4_COMPUTE = math.sqrt((72 / 121) / (350 / 362))
MI300X_BF16 = (620 / 1307.4) / (720 / 989.4)
MI300X_FP8 = (990 / 2614.9) / (1280 / 1978.9)


def _family(names: str, *of: str, log_sd: float = FAMILY_LOG_SD, but: str = "") -> Estimate:
    mean = "Geometric mean of the dimensionless" if len(of) > 1 else "Dimensionless"
    text = f"{mean} efficiencies and fixed times of {names}, of the same family{but}; {_REPLACED}"
    return Estimate(of=of, log_sd=log_sd, method=text)


AMPERE = _family("A100", "a100-80gb-sxm")
AMPERE_CARD = _family(
    "A100", "a100-80gb-sxm", log_sd=BOARD_LOG_SD, but=". The card's lower power limit is not counted"
)
AMPERE_BOARD = Estimate(
    of=("a100-80gb-sxm", "l40s"),
    log_sd=BOARD_LOG_SD,
    method="Geometric mean of the dimensionless efficiencies and fixed times of A100 (same architecture) "
    f"and L40S (same class of board); {_REPLACED}",
)
ADA = _family("L40S", "l40s")
HOPPER = _family("H100 and H200", "h100-sxm", "h200-sxm")
HOPPER_CARD = _family(
    "H100 and H200",
    "h100-sxm",
    "h200-sxm",
    log_sd=BOARD_LOG_SD,
    but=". The card's lower power limit is not counted",
)
GDDR7_MEMORY = 1597 / 1792
"""The tables' rates on RTX PRO 6000 Server Edition are 95 % of the data sheet's 1,597 GB/s, but 85 % of the
1,792 GB/s of the other boards with this chip: what GDDR boards reach. So these get the latter share."""
GB202_BOARD = Estimate(
    of=("rtx-pro-6000-server",),
    log_sd=FAMILY_LOG_SD,
    factors={"memory": GDDR7_MEMORY},
    method="Dimensionless efficiencies and fixed times of RTX PRO 6000 Server Edition, of the same chip. "
    "Shares of the bandwidth are those of 1,792 GB/s, which its tables suggest, not of its data sheet's "
    f"1,597 GB/s; {_REPLACED}",
)
GB202_CARD = replace(
    GB202_BOARD,
    log_sd=BOARD_LOG_SD,
    method=GB202_BOARD.method.replace(
        "of the same chip.", "of the same chip, fewer units of which are in use."
    ),
)
ANY = Estimate(
    of=ALL,
    log_sd=FAR_LOG_SD,
    method="Geometric mean of the dimensionless efficiencies and fixed times of H100, H200, A100, L40S, B200 "
    f"and GB200, none of them of this family; {_REPLACED}",
)
L4_ESTIMATE = Estimate(
    of=("l40s",),
    log_sd=FAR_LOG_SD,
    factors={"bf16": L4_COMPUTE, "fp8": L4_COMPUTE},
    method="Dimensionless efficiencies and fixed times of L40S, of the same architecture. Compute "
    "efficiencies are multiplied by 0.78, the geometric mean of 1 (no power limit) and 0.61 (power per "
    "peak FLOP/s against L40S: 72 W / 121 TFLOP/s over 350 W / 362 TFLOP/s): ours, to be replaced by "
    "`planner profile` on the device.",
)
CDNA3 = Estimate(
    of=("h100-sxm", "h200-sxm"),
    log_sd=FAR_LOG_SD,
    factors={"bf16": MI300X_BF16, "fp8": MI300X_FP8},
    method="Geometric mean of the dimensionless efficiencies and fixed times of H100 and H200. Compute "
    "efficiencies are multiplied by the ratio of matrix throughput to peak that one public benchmark found "
    "for MI300X (620 of 1,307 TFLOP/s in BF16, 990 of 2,615 in FP8) over what it found for H100 (720 of "
    "989, 1,280 of 1,979): SemiAnalysis, 'MI300X vs H100 vs H200 Benchmark Part 1: Training', 2024-12-22. "
    "To be replaced by `planner profile` on the device.",
)

# --------------------------------------------------------------------------------------------
# NVIDIA, before Hopper

_ALL_WORLDS = (2, 4, 8)

_EARLY = (
    Device(
        name="t4",
        row="T4",
        aliases=("t4-16gb", "tesla-t4"),
        architecture="turing",
        memory_gib=14.56,
        driver_mib=15360,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE3,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"fp16": "No bf16: models run in fp16.", "hbm": "Some documents say 300.", "domain": NODE_NOTE},
        pcie=_ALL_WORLDS,
        estimate=ANY,
    ),
    *(
        Device(
            name=f"v100-{size}gb-sxm",
            row=f"V100-SXM2-{size}",
            aliases=aliases,
            architecture="volta",
            memory_gib=memory,
            driver_mib=size * 1024,
            driver_verified=False,
            driver_note=f"Older drivers show {older:,}.",
            scale_up_kind="nvlink-mesh",
            host_source=PCIE3,
            network_source=USUAL_NETWORK,
            network_verified=False,
            notes={
                "fp16": "No bf16: models run in fp16. INT8 has no tensor cores.",
                "link": "Six links in a hybrid cube mesh: a single peer gets one or two of them.",
            },
            estimate=ANY,
        )
        for size, memory, older, aliases in (
            (16, 15.77, 16160, ("v100-16gb", "v100-sxm2-16gb")),
            (32, 31.73, 32510, ("v100", "v100-32gb", "v100-sxm2", "v100-sxm2-32gb")),
        )
    ),
    Device(
        name="a10",
        row="A10",
        aliases=("a10-24gb", "a10-pcie"),
        architecture="ampere",
        memory_gib=22.06,
        driver_mib=23028,
        spec_source="NVIDIA virtual GPU system requirements, A10",
        trusted=frozenset({"mem_bw_gbs", "l2_mb", "sm_or_cu"}),
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"bf16": "The datasheet's 125 | 250* is dense | sparse.", "domain": NODE_NOTE},
        pcie=_ALL_WORLDS,
        estimate=AMPERE_BOARD,
    ),
    Device(
        name="a10g",
        row="A10G",
        aliases=("a10g-24gb", "a10g-pcie"),
        architecture="ampere",
        memory_gib=22.06,
        memory_verified=False,
        driver_mib=23028,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source="AWS g5.xlarge: up to 10 Gbit/s for one GPU; 12.5 per GPU on 8-GPU instances",
        notes={"bf16": "Half the tensor peak of the A10.", "domain": NODE_NOTE},
        pcie=_ALL_WORLDS,
        estimate=AMPERE_BOARD,
    ),
    Device(
        name="a40",
        row="A40",
        aliases=("a40-48gb", "a40-pcie"),
        architecture="ampere",
        memory_gib=44.42,
        memory_verified=False,
        driver_mib=46068,
        driver_note="With ECC; without it 49,140.",
        spec_source="NVIDIA A40 datasheet, as reprinted by a reseller",
        trusted=frozenset({"bf16_tflops", "fp16_tflops", "mem_bw_gbs", "tdp_w"}),
        scale_up_kind="nvlink-bridge",
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"bf16": SPARSE_NOTE, "domain": PAIR_NOTE},
        pcie=(4, 8),
        estimate=AMPERE_BOARD,
    ),
    Device(
        name="rtx-a6000",
        row="RTX-A6000",
        aliases=("a6000", "rtxa6000", "a6000-48gb"),
        architecture="ampere",
        memory_gib=47.53,
        driver_mib=49140,
        driver_note="Without ECC, as shipped.",
        scale_up_kind="nvlink-bridge",
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"bf16": SPARSE_NOTE, "domain": PAIR_NOTE},
        pcie=(4, 8),
        estimate=AMPERE_BOARD,
    ),
    Device(
        name="a100-40gb-sxm",
        row="A100-SXM4-40GB",
        aliases=("a100-40gb", "a100-sxm4-40gb", "a100-sxm-40gb"),
        architecture="ampere",
        memory_gib=39.49,
        driver_mib=40960,
        driver_note="Older drivers show 40,536.",
        spec_source="G. Lockwood, notes on NVIDIA A100 (glennklockwood.com)",
        trusted=frozenset(
            {"bf16_tflops", "fp16_tflops", "int8_tops", "mem_bw_gbs", "l2_mb", "sm_or_cu", "tdp_w"}
            | {"scaleup_gbs_per_dir"}
        ),
        scale_up_kind="nvlink",
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"link": "The vendor prints 600, of both directions."},
        estimate=AMPERE,
    ),
    Device(
        name="a100-80gb-sxm",
        row="A100-SXM4-80GB",
        aliases=("a100", "a100-80gb", "a100-sxm", "a100-sxm4-80gb", "a100-sxm-80gb", "a100_sxm"),
        architecture="ampere",
        system="a100_sxm",
        memory_gib=79.14,
        driver_mib=81920,
        spec_source=AIC,
        trusted=AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source=PCIE4,
        network_source="200 Gbit/s per GPU: Azure ND A100 v4 (1,600 Gbit/s for 8 GPUs)",
    ),
    Device(
        name="a100-40gb-pcie",
        row="A100-PCIe-40GB",
        aliases=("a100-pcie-40gb",),
        architecture="ampere",
        memory_gib=39.49,
        driver_mib=40960,
        driver_note="Older drivers show 40,536.",
        scale_up_kind="nvlink-bridge",
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"domain": PAIR_NOTE},
        pcie=(4, 8),
        estimate=AMPERE_CARD,
    ),
    Device(
        name="a100-80gb-pcie",
        row="A100-PCIe-80GB",
        aliases=("a100-pcie", "a100-pcie-80gb"),
        architecture="ampere",
        memory_gib=79.14,
        driver_mib=81920,
        spec_source=AIC.format(system="a100_pcie"),
        trusted=AIC_CARD,
        scale_up_kind="nvlink-bridge",
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"domain": PAIR_NOTE},
        pcie=(4, 8),
        estimate=AMPERE_CARD,
    ),
    Device(
        name="l4",
        row="L4",
        aliases=("l4-24gb", "l4-pcie"),
        architecture="ada",
        memory_gib=22.03,
        driver_mib=23034,
        spec_source=AIC,
        trusted=AIC_COLUMNS,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source="AWS g6.xlarge: up to 10 Gbit/s for one GPU; 12.5 per GPU on 8-GPU instances",
        notes={
            "bf16": SPARSE_NOTE + " Power-capped at 72 W: sustained products stay far below it.",
            "fp8": SPARSE_NOTE,
            "domain": NODE_NOTE,
        },
        pcie=_ALL_WORLDS,
        estimate=L4_ESTIMATE,
    ),
    Device(
        name="l40",
        row="L40",
        aliases=("l40-48gb", "l40-pcie"),
        architecture="ada",
        memory_gib=44.42,
        memory_verified=False,
        driver_mib=46068,
        driver_verified=False,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"bf16": "Half the dense peak of the L40S.", "domain": NODE_NOTE},
        pcie=_ALL_WORLDS,
        estimate=ADA,
    ),
    Device(
        name="l40s",
        row="L40S",
        aliases=("l40s-48gb", "l40s-pcie"),
        architecture="ada",
        system="l40s",
        memory_gib=44.40,
        driver_mib=46068,
        spec_source=AIC,
        trusted=AIC_COLUMNS,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source="AWS g6e.48xlarge: 400 Gbit/s for 8 GPUs",
        notes={"bf16": SPARSE_NOTE, "fp8": SPARSE_NOTE, "domain": NODE_NOTE},
        pcie=_ALL_WORLDS,
    ),
    Device(
        name="rtx-4090",
        row="RTX-4090",
        aliases=("4090", "rtx4090", "geforce-rtx-4090"),
        architecture="ada",
        memory_gib=23.64,
        driver_mib=24564,
        spec_source="a hosting provider's comparison of GPUs (gigagpu)",
        trusted=frozenset({"mem_bw_gbs", "l2_mb", "tdp_w"}),
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={
            "bf16": "With FP32 accumulation, which inference uses.",
            "fp8": "With FP32 accumulation; 660.6 with FP16 accumulation.",
            "domain": NODE_NOTE,
        },
        pcie=_ALL_WORLDS,
        estimate=ADA,
    ),
    Device(
        name="rtx-6000-ada",
        row="RTX-6000-Ada",
        aliases=("rtx6000ada", "rtx-6000-ada-48gb", "6000-ada"),
        architecture="ada",
        memory_gib=47.50,
        driver_mib=49140,
        driver_note="Without ECC, as shipped; with it 46,068.",
        memory_note="With ECC 44.43.",
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"fp8": "The vendor's 1,457 'AI TOPS' are FP8 with sparsity.", "domain": NODE_NOTE},
        pcie=_ALL_WORLDS,
        estimate=ADA,
    ),
)

# --------------------------------------------------------------------------------------------
# NVIDIA, Hopper and Blackwell

_HOPPER = (
    Device(
        name="h100-sxm",
        row="H100-SXM5",
        aliases=("h100", "h100-sxm5", "h100-80gb", "h100-sxm-80gb", "h100_sxm"),
        architecture="hopper",
        system="h100_sxm",
        cross_read=frozenset({"scaleup_domain"}),
        memory_gib=79.19,
        memory_source="vLLM's own memory report on this GPU (llm-d-planner, accuracy report v0.19.0)",
        driver_mib=81559,
        spec_source=AIC,
        trusted=AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=NIC_400,
        notes={"bf16": SPARSE_NOTE, "fp8": SPARSE_NOTE},
    ),
    Device(
        name="h100-pcie",
        row="H100-PCIe",
        aliases=("h100-pcie-80gb", "h100_pcie"),
        architecture="hopper",
        memory_gib=79.18,
        memory_verified=False,
        driver_mib=81559,
        spec_source=AIC.format(system="h100_pcie"),
        trusted=AIC_CARD,
        scale_up_kind="nvlink-bridge",
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"bf16": SPARSE_NOTE, "fp8": SPARSE_NOTE, "domain": PAIR_NOTE},
        pcie=(4, 8),
        estimate=HOPPER_CARD,
    ),
    Device(
        name="h100-nvl",
        row="H100-NVL",
        aliases=("h100-nvl-94gb", "h100_nvl"),
        architecture="hopper",
        memory_gib=93.10,
        driver_mib=95830,
        scale_up_kind="nvlink-bridge",
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={
            "bf16": "Older data sheets print figures of the pair of cards: a card is half of that.",
            "domain": PAIR_NOTE,
        },
        pcie=(4, 8),
        estimate=HOPPER_CARD,
    ),
    Device(
        name="h20",
        row="H20",
        aliases=("h20-96gb", "h20-sxm"),
        architecture="hopper",
        memory_gib=95.0,
        memory_verified=False,
        driver_mib=97871,
        spec_source="two public comparisons of H20 (zangshuxian.com, willitrunai)",
        trusted=frozenset(
            {"bf16_tflops", "fp16_tflops", "fp8_tflops", "int8_tops", "mem_bw_gbs", "sm_or_cu"}
        ),
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"power": "nvidia-smi shows a limit of 500 W on some boards."},
        estimate=HOPPER,
    ),
    Device(
        name="h20-141gb",
        row="H20-3e",
        aliases=("h20-3e", "h20e"),
        architecture="hopper",
        memory_gib=139.80,
        memory_verified=False,
        memory_note="That of H200.",
        driver_mib=143771,
        driver_verified=False,
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        estimate=HOPPER,
    ),
    Device(
        name="h800-sxm",
        row="H800-SXM",
        aliases=("h800", "h800-80gb"),
        architecture="hopper",
        memory_gib=79.19,
        memory_verified=False,
        memory_note="That of H100.",
        driver_mib=81559,
        driver_verified=False,
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"link": "H100's link cut to 400 of both directions."},
        estimate=HOPPER,
    ),
    Device(
        name="h200-sxm",
        row="H200-SXM",
        aliases=("h200", "h200-sxm5", "h200-141gb", "h200_sxm"),
        architecture="hopper",
        system="h200_sxm",
        cross_read=frozenset({"scaleup_domain"}),
        memory_gib=139.80,
        driver_mib=143771,
        spec_source=AIC,
        trusted=AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=NIC_400,
        notes={"bf16": SPARSE_NOTE, "fp8": SPARSE_NOTE},
    ),
    Device(
        name="h200-nvl",
        row="H200-NVL",
        aliases=("h200-nvl-141gb", "h200_nvl"),
        architecture="hopper",
        memory_gib=139.80,
        memory_verified=False,
        memory_note="That of H200 SXM.",
        driver_mib=143771,
        driver_verified=False,
        scale_up_kind="nvlink-bridge",
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"domain": "Bridges join two or four cards; larger groups talk over PCIe."},
        pcie=(8,),
        estimate=HOPPER_CARD,
    ),
    Device(
        name="gh200",
        row="GH200-96",
        aliases=("gh200-96gb", "gh200-480gb"),
        architecture="hopper",
        memory_gib=94.5,
        memory_verified=False,
        driver_mib=97871,
        scale_up_kind="nvlink-c2c",
        host_source="NVLink-C2C to Grace: the vendor prints 900 GB/s, of both directions",
        host_gb_per_s=450.0,
        host_verified=False,
        network_source=USUAL_NETWORK,
        network_verified=False,
        note="The version with 96 GB of HBM3 (480 GB is Grace's memory); 144 GB of HBM3e come at 4,900 GB/s.",
        notes={"link": "To Grace; no other GPU is in reach.", "power": "Up to 900 W with Grace."},
        estimate=HOPPER,
    ),
    Device(
        name="b200-sxm",
        row="B200-SXM",
        aliases=("b200", "b200-180gb", "b200_sxm"),
        architecture="blackwell",
        system="b200_sxm",
        cross_read=frozenset({"scaleup_domain", "mem_bw_gbs"}),
        memory_gib=178.35,
        driver_mib=183359,
        spec_source=AIC,
        trusted=AIC_COLUMNS - {"mem_bw_gbs"},
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=NIC_400,
        notes={
            "hbm": "aiconfigurator-core uses 7,700; efficiencies are rescaled to this figure.",
            "host": "The device is capable of PCIe 6.0; hosts of the day are not.",
            "network": "Newer systems have 800 Gbit/s.",
        },
    ),
    Device(
        name="b300-sxm",
        row="B300-SXM",
        aliases=("b300", "b300-288gb", "b300_sxm"),
        architecture="blackwell",
        system="b300_sxm",
        cross_read=frozenset({"scaleup_domain", "mem_bw_gbs", "fp4_tflops"}),
        memory_gib=267.69,
        driver_mib=275040,
        driver_note="288 GB physical.",
        spec_source=AIC,
        trusted=AIC_COLUMNS - {"mem_bw_gbs", "fp4_tflops", "int8_tops"},
        scale_up_kind="nvlink",
        host_source=PCIE6,
        network_source=NIC_800,
        notes={
            "fp4": "aiconfigurator-core uses 14,000. Efficiencies are rescaled to this figure.",
            "int8": "INT8 is cut to a thirtieth of B200's: use FP8. aiconfigurator-core says 153.5.",
            "hbm": "aiconfigurator-core uses 7,750. Efficiencies are rescaled to this figure.",
        },
    ),
    Device(
        name="gb200",
        row="GB200",
        aliases=("gb200-nvl72", "gb200-186gb"),
        architecture="blackwell",
        system="gb200",
        cross_read=frozenset({"scaleup_domain"}),
        memory_gib=184.31,
        driver_mib=189471,
        spec_source=AIC,
        trusted=AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source=C2C_SHARED,
        network_source="Azure ND GB200 v6: 400 Gbit/s per GPU",
        network_verified=False,
    ),
    Device(
        name="gb300",
        row="GB300",
        aliases=("gb300-nvl72", "gb300-288gb"),
        architecture="blackwell",
        system="gb300",
        cross_read=frozenset({"scaleup_domain"}),
        memory_gib=276.50,
        driver_mib=284208,
        driver_note="288 GB physical.",
        spec_source=AIC,
        trusted=AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source=C2C_SHARED,
        network_source="ConnectX-8, 800 Gbit/s per GPU; " + AIC.format(system="gb300"),
        notes={"int8": "INT8 is cut to a thirtieth of GB200's: use FP8."},
    ),
    Device(
        name="rtx-5090",
        row="RTX-5090",
        aliases=("5090", "rtx5090", "geforce-rtx-5090"),
        architecture="blackwell",
        memory_gib=31.36,
        driver_mib=32607,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"bf16": "With FP32 accumulation, which inference uses.", "domain": NODE_NOTE},
        pcie=_ALL_WORLDS,
        estimate=GB202_CARD,
    ),
    Device(
        name="rtx-pro-6000-server",
        row="RTX-PRO-6000-SE",
        aliases=("rtx-pro-6000", "rtxpro6000", "rtx-pro-6000-se"),
        architecture="blackwell",
        system="rtx_pro_6000_server",
        memory_gib=94.97,
        driver_mib=97887,
        spec_source=AIC,
        trusted=AIC_COLUMNS - {"mem_bw_gbs", "scaleup_gbs_per_dir"},
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={
            "bf16": "At 2,430 MHz.",
            "hbm": "The data sheet of the Server Edition; aiconfigurator-core uses the Workstation's 1,792. "
            "Efficiencies are rescaled to this figure.",
            "domain": NODE_NOTE,
        },
        pcie=_ALL_WORLDS,
        pcie_of="rtx-pro-6000-server",
    ),
    Device(
        name="rtx-pro-6000-workstation",
        row="RTX-PRO-6000-WS",
        aliases=("rtx-pro-6000-ws", "rtxpro6000-ws"),
        architecture="blackwell",
        memory_gib=94.97,
        driver_mib=97887,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"fp4": "The vendor's 4,000 'AI TOPS' are FP4 with sparsity.", "domain": NODE_NOTE},
        pcie=_ALL_WORLDS,
        pcie_of="rtx-pro-6000-server",
        estimate=GB202_BOARD,
    ),
)

# --------------------------------------------------------------------------------------------
# AMD and Intel

_ROCM = "AMD ROCm documentation, GPU hardware specifications (compute units, L2, VRAM)"
_CACHE_NOTE = "256 MB of Infinity Cache come on top."
_MESH_NOTE = "To all seven peers; a single peer gets a seventh."
_GCD_NOTE = (
    "One GPU of this profile is one of the package's two dies (GCD), which software sees as a device of its "
    "own: half the package's figures. Price a package at two of them."
)
_NO_FP4_ROW = "Nobody measured MXFP4 products here: FP4 weights are planned with 16-bit arithmetic."


def _dual(name: str, aliases: tuple[str, ...]) -> Device:
    return Device(
        name=name,
        row=name.upper(),
        aliases=aliases,
        architecture="cdna2",
        memory_gib=63.98,
        scale_up_kind="infinity-fabric",
        scale_up_domain=8,
        host_source="half of the package's link to the host",
        host_verified=False,
        network_source=USUAL_NETWORK + "; half a package's",
        network_verified=False,
        parts=2,
        note=_GCD_NOTE,
        notes={
            "link": "Half of what leaves a package; the other die of the package is closer.",
            "domain": "Both dies of four packages.",
        },
        estimate=ANY,
    )


_OTHERS = (
    Device(
        name="mi210",
        row="MI210",
        aliases=("mi210-64gb", "mi210-pcie"),
        architecture="cdna2",
        memory_gib=63.98,
        scale_up_kind="infinity-fabric",
        host_source=PCIE4,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"link": "Three links.", "domain": "A bridge joins four cards; larger groups talk over PCIe."},
        pcie=(8,),
        estimate=ANY,
    ),
    _dual("mi250", ("mi250-gcd",)),
    _dual("mi250x", ("mi250x-gcd",)),
    Device(
        name="mi300x",
        row="MI300X",
        aliases=("mi300x-192gb", "mi300x-oam"),
        architecture="cdna3",
        memory_gib=191.69,
        memory_note="Some driver versions show 191.98.",
        spec_source=INFERENCEX,
        trusted=IX_COLUMNS,
        scale_up_kind="infinity-fabric",
        host_source=PCIE5,
        network_source=NIC_400,
        notes={"l2": _CACHE_NOTE, "link": "To all seven peers; a single peer gets 64 GB/s."},
        estimate=CDNA3,
    ),
    Device(
        name="mi325x",
        row="MI325X",
        aliases=("mi325x-256gb", "mi325x-oam"),
        architecture="cdna3",
        memory_gib=255.98,
        memory_note="As shipped; announced with 288 GB.",
        spec_source=INFERENCEX,
        trusted=IX_COLUMNS,
        scale_up_kind="infinity-fabric",
        host_source=PCIE5,
        network_source=NIC_400,
        notes={"l2": _CACHE_NOTE, "link": "To all seven peers; a single peer gets 64 GB/s."},
        estimate=CDNA3,
    ),
    Device(
        name="mi350x",
        row="MI350X",
        aliases=("mi350x-288gb", "mi350x-oam"),
        architecture="cdna4",
        memory_gib=287.98,
        memory_verified=False,
        memory_note="That of MI355X.",
        spec_source=_ROCM,
        trusted=frozenset({"sm_or_cu", "l2_mb"}),
        scale_up_kind="infinity-fabric",
        host_source=PCIE5,
        network_source=USUAL_NETWORK,
        network_verified=False,
        notes={"l2": _CACHE_NOTE, "link": _MESH_NOTE, "fp4": _NO_FP4_ROW},
        estimate=ANY,
    ),
    Device(
        name="mi355x",
        row="MI355X",
        aliases=("mi355x-288gb", "mi355x-oam"),
        architecture="cdna4",
        memory_gib=287.98,
        spec_source=INFERENCEX,
        trusted=IX_COLUMNS,
        scale_up_kind="infinity-fabric",
        host_source=PCIE5,
        network_source=NIC_400,
        notes={
            "fp8": "Dense; some articles take it for a figure with sparsity.",
            "fp4": _NO_FP4_ROW,
            "l2": _CACHE_NOTE,
            "link": "Seven links of 153.6 GB/s, both directions; other tables say 576. "
            "A single peer gets a seventh.",
        },
        estimate=ANY,
    ),
    Device(
        name="gaudi2",
        row="Gaudi2",
        aliases=("gaudi-2", "hl-225"),
        architecture="gaudi2",
        memory_gib=94.62,
        memory_verified=False,
        driver_mib=98304,
        driver_verified=False,
        spec_source="a review of Gaudi 2 and 3 (pcguia)",
        trusted=frozenset({"bf16_tflops", "mem_bw_gbs", "tdp_w"}),
        scale_up_kind="roce",
        host_source=PCIE4,
        network_source="three 100 Gbit/s ports per card, as remembered",
        network_verified=False,
        notes={
            "fp8": "Another source says 835.",
            "sm": "Tensor processor cores: they do what is element by element, softmax too; two matrix "
            "engines do the products.",
            "l2": "Static memory on the die.",
            "link": "21 ports of 100 Gbit/s.",
        },
        estimate=ANY,
    ),
    Device(
        name="gaudi3",
        row="Gaudi3-OAM",
        aliases=("gaudi-3", "hl-325l"),
        architecture="gaudi3",
        memory_gib=126.5,
        memory_verified=False,
        driver_mib=131072,
        spec_source="public reviews of Gaudi 3 (evokernel, pcguia, The Register)",
        trusted=frozenset({"bf16_tflops", "fp8_tflops", "mem_bw_gbs", "tdp_w"}),
        scale_up_kind="roce",
        host_source=PCIE5,
        network_source="three 200 Gbit/s ports per card, as remembered",
        network_verified=False,
        notes={
            "fp8": "The same as in BF16: FP8 saves bytes, not time.",
            "sm": "Tensor processor cores: they do what is element by element, softmax too; eight matrix "
            "engines do the products.",
            "l2": "Static memory on the dies.",
            "link": "21 of 24 ports of 200 Gbit/s; the vendor's 1,200 are all 24 in both directions.",
        },
        estimate=ANY,
    ),
)

DEVICES: tuple[Device, ...] = (*_EARLY, *_HOPPER, *_OTHERS)
