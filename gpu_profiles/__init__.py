"""One YAML file per GPU: the vendor's figures, and how much of them serving kernels reach."""
