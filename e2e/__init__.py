"""The clusters and images that the end-to-end tests and the cluster demo run on: `python -m e2e`."""
