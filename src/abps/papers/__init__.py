"""The paper's own experiments: theorems, bandits, detection, adaptation."""
