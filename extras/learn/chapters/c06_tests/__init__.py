"""Chapter 6: lit tests of the passes of chapter 5."""
