"""From plan to files that start its pools: what an engine accepts, what is deployed, how it is written."""
