"""Plans as objects of a Kubernetes cluster."""
