"""What `whet redteam` found, as a page and as a section of the report of a run."""
