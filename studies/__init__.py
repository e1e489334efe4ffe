"""What was studied with the library: recipes, what came out, and the page that shows it."""
