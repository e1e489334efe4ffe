"""Memory of a decoder by formula: numbers of weights, bytes of a training pass, bytes of sampling. Imports no torch."""
