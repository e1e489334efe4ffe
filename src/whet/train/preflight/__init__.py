"""`whet doctor RECIPE|MODEL`: checks before a run, on the parts that the run would be built of."""
