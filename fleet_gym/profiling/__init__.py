"""What a running environment costs: memory signals, leak verdicts, phases of a step, reports."""
