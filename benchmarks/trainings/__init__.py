"""What is said of trainings that nobody picked: `python -m benchmarks.trainings --seeds FROM:TO`. See PROTOCOL.md."""
