"""What writes pages of docs/ from the code: `make docs`. Not part of the installed package."""
