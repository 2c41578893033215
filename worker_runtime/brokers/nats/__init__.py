"""NATS JetStream as a broker."""
