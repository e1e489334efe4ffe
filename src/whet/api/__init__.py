"""The library as Python calls it: `whet.train`, `whet.load`, `whet.evaluate`, `whet.compare`. Commands call it too."""
