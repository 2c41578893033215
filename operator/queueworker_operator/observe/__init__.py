"""Facts: what is seen of workers and brokers, each with its time, or Unknown."""
