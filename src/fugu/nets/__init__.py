"""Networks as plain descriptions, which every engine runs and every exporter writes."""
