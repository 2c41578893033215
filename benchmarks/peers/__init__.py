"""The peers: worker and producer of each, run in environments of their own."""
