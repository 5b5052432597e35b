"""Rules by family. Each module registers functions with `registry.rule`."""
