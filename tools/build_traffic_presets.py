"""Write ``planner/catalog/traffic/*.yaml`` from trace files.

    python tools/build_traffic_presets.py azure2023_conv.csv azure2023_code.csv mooncake_conversation.csv

Files are as ``planner workload`` reads them; their stems select the citation below. Presets hold statistics
only: quantiles of the lengths, rate, burstiness.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.documents.trace_file import read_trace
from planner.documents.traffic_preset import Facts, preset_text
from planner.traces import measure

COMMENT = "Written by tools/build_traffic_presets.py: change that and run it again."

_AZURE = (
    "P. Patel et al., 'Splitwise: Efficient Generative LLM Inference Using Phase Splitting', ISCA 2024; "
    "trace by Microsoft, https://github.com/Azure/AzurePublicDataset"
)

PRESETS = {
    "azure2023_conv": Facts(
        name="azure-2023-conversation",
        description="Conversations at Azure, about an hour of 2023-11-16.",
        citation=_AZURE,
        source="AzurePublicDataset, data/AzureLLMInferenceTrace_conv.csv at b469a113",
        licence="CC-BY-4.0",
    ),
    "azure2023_code": Facts(
        name="azure-2023-code",
        description="Code completion at Azure, about an hour of 2023-11-16.",
        citation=_AZURE,
        source="AzurePublicDataset, data/AzureLLMInferenceTrace_code.csv at b469a113",
        licence="CC-BY-4.0",
        note=(
            "Bursts last tens of seconds: the inter-arrival times are no renewal process, so plan for the "
            "peak rate or replay the trace rather than use their coefficient of variation in a queueing "
            "formula."
        ),
    ),
    "mooncake_conversation": Facts(
        name="mooncake-conversation",
        description="Conversations at Moonshot AI (Kimi), about an hour, long prompts with shared prefixes.",
        citation=(
            "R. Qin et al., 'Mooncake: Trading More Storage for Less Computation - A KVCache-centric "
            "Architecture for Serving LLM Chatbot', FAST 2025; trace at https://github.com/kvcache-ai/Mooncake"
        ),
        source="Mooncake, FAST25-release/traces/conversation_trace.jsonl at 3b5a5941",
        licence="Apache-2.0",
        note=(
            "Timestamps are multiples of about 3 s. Inter-arrival times were computed after spreading equal "
            "timestamps at random over the gap that follows. An infinite prefix cache would hit 37 % of the "
            "blocks of 512 tokens."
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("traces", type=Path, nargs="+", help="trace files")
    parser.add_argument(
        "--output", type=Path, default=Path("planner/catalog/traffic"), help="folder to write to"
    )
    arguments = parser.parse_args()
    for path in arguments.traces:
        if path.stem not in PRESETS:
            parser.error(f"{path}: no citation for {path.stem!r}; known: {', '.join(PRESETS)}")
        facts, trace = PRESETS[path.stem], read_trace(path)
        text = preset_text(trace, measure(trace), facts, COMMENT)
        (arguments.output / f"{facts.name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
