"""The chapters of the tutorial: one package each, whose module `exercises` defines `CHAPTER`."""
