"""The documentation as a site of files: `make site` writes it into site/, and it opens without a server."""
