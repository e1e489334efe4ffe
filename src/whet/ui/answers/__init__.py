"""The questions of the page and their answers as JSON: a function each, the same for server and export."""
