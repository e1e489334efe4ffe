"""Files and data sets of other people → the records that training reads. Knows no tokenisers and no tensors."""
