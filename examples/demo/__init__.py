"""The demo: two acts on this machine, whose parts the demo on a cluster (`make demo-kind`) uses as well."""
